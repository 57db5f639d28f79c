"""`tilegrad ...` on ranks as `torchrun` starts them, in processes that begin with torch imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rank_pool import free_port, server

LIMIT_S = 240.0


def run_ranks(folder: Path, ranks: int, words: Sequence[str]) -> None:
    """Run a command in `folder` on so many ranks, all of which must end with code 0."""
    context, port = server(), free_port()
    said = [folder / f"said by rank {rank}" for rank in range(ranks)]
    processes = [
        context.Process(target=_command, args=(folder, rank, ranks, port, tuple(words), file), daemon=True)
        for rank, file in enumerate(said)
    ]
    for process in processes:
        process.start()
    for process, file in zip(processes, said, strict=True):
        process.join(LIMIT_S)
        code = process.exitcode
        process.kill()
        assert code == 0, f"exit code {code}: {file.read_text()}"


def _command(folder: Path, rank: int, ranks: int, port: int, words: tuple[str, ...], said: Path) -> None:
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.chdir(folder)
    from tilegrad.cli import main

    sys.exit(main(list(words)))
