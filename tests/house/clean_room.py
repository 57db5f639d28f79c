"""A clean room: this tree as a stranger clones it, and an environment into which the wheel built of it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CleanRoom:
    clone: Path
    environment: Path
    built: dict[str, Path]  # by suffix: the wheel and the source archive

    @property
    def variables(self) -> dict[str, str]:
        """Nothing of ours is on the path of Python, and nobody's measurements and plans are read or written."""
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TILEGRAD", "COLUMNS"))
        }
        path = f"{self.environment / 'bin'}{os.pathsep}{kept.get('PATH', '')}"
        return kept | {
            "PATH": path,
            "TILEGRAD_CACHE": "off",
            "OMP_NUM_THREADS": "1",
            "VIRTUAL_ENV": str(self.environment),
        }

    def run(self, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Both outputs as one, as on a terminal."""
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        where = folder or self.clone
        command = [shutil.which(words[0], path=self.variables["PATH"]) or words[0], *words[1:]]
        return subprocess.run(command, cwd=where, env=self.variables, text=True, check=False, **both)  # type: ignore[call-overload]
