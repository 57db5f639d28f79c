"""The network of locally connected layers on 1, 2 and 4 ranks, and states that go from one number to another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from local_tasks import plain
from rank_pool import MeshSpec, Pool, RanksFailed, mesh_of
from weight_tools import plain_tools

from tilegrad.distributed import load_state, save_state
from tilegrad.distributed import state as state_module
from tilegrad.errors import FormatError
from tilegrad.models.local_net import LocalNet

MESHES = [mesh_of(h=1), mesh_of(h=2), mesh_of(w=2), mesh_of(h=2, w=2), mesh_of(batch=2, h=2)]


def close_to(found: dict[str, Any], losses: list[float], net: torch.nn.Module) -> None:
    assert found["losses"] == pytest.approx(losses, rel=1e-10)
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(found["weights"][name], parameter.detach(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("gain", ["a*(x+b)", "a*x+b"])
def test_it_trains_as_one_process_does(pool: Pool, mesh: MeshSpec, gain: str) -> None:
    payload = {"gain": gain, "device": "meta"}
    losses, net = plain(payload)
    for found in pool.run(mesh, "local_tasks:train", payload):
        close_to(found, losses, net)
        assert found["traffic"]


def test_weights_are_shared_out(pool: Pool) -> None:
    """Each rank has its part of the weights, and only gains are added up over ranks."""
    whole = sum(p.numel() for p in LocalNet(image=(13, 11), layers=((4, 5), (3, 4)), classes=6).parameters())
    for mesh, count in ((mesh_of(h=1), 1), (mesh_of(h=2), 2), (mesh_of(h=2, w=2), 4)):
        found = pool.run(mesh, "local_tasks:train", {"steps": 1})
        assert sum(f["count"] for f in found) == whole + 2 * (count - 1)  # the two gains are everybody's
        assert max(f["count"] for f in found) <= 1.35 * whole / count
        assert all(f["summed_bytes"] <= 2 * 8 + 6 * 6 * 8 * 3 for f in found)  # gains, and the logits' gradient
        assert len(found[0]["cut"]) == 5


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_state_goes_on_under_another_number_of_ranks(pool: Pool, tmp_path: Path, optimizer: str) -> None:
    payload = {"optimizer": optimizer}
    losses, net = plain({**payload, "steps": 6})
    first, second = tmp_path / "first", tmp_path / "second"
    found = pool.run(mesh_of(h=2), "local_tasks:train", {**payload, "steps": 2, "save": str(first)})[0]["losses"]
    found += pool.run(
        mesh_of(h=2, w=2), "local_tasks:train", {**payload, "steps": 2, "load": str(first), "save": str(second)}
    )[0]["losses"]
    last = pool.run(mesh_of(h=1), "local_tasks:train", {**payload, "steps": 2, "load": str(second)})[0]
    close_to({**last, "losses": found + last["losses"]}, losses, net)


def test_a_state_is_one_of_plain_modules_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, other = (torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3)) for _ in range(2))
    net[1].running_mean.fill_(3)
    save_state(net.bfloat16(), tmp_path / "state")
    save_state(net, tmp_path / "state")  # over the old one
    load_state(other.bfloat16(), tmp_path / "state")
    for mine, theirs in zip(other.state_dict().values(), net.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    assert [p.name for p in tmp_path.iterdir()] == ["state"]  # no drafts are left
    assert sorted(len(p.name) for p in (tmp_path / "state").iterdir()) == [len("index.json"), 12]


def test_a_state_of_the_first_schema(tmp_path: Path) -> None:
    """Whose tensors were beside the index."""
    net, other = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
    save_state(net, tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    for file in (tmp_path / index.pop("folder")).iterdir():
        file.rename(tmp_path / file.name)
    (tmp_path / "index.json").write_text(json.dumps(index | {"schema": 1}))
    load_state(other, tmp_path)
    assert torch.equal(other.weight, net.weight)
    save_state(net, tmp_path)
    assert not list(tmp_path.glob("*.npy"))


@pytest.mark.parametrize("moment", ["_write", "_replace_index"])
def test_there_is_always_a_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """Whenever a rank is killed."""
    net, other = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
    save_state(net, tmp_path / "state")
    with monkeypatch.context() as killed:
        killed.setattr(state_module, moment, _killed)
        killed.setattr(state_module.shutil, "rmtree", lambda *_, **__: None)  # the dead do not clean up
        with pytest.raises(SystemExit):
            save_state(other, tmp_path / "state")
    load_state(other, tmp_path / "state")
    assert torch.equal(other.weight, net.weight)
    save_state(net, tmp_path / "state")
    assert len(list((tmp_path / "state").iterdir())) == 2  # nothing is left of it


def _killed(*_: Any) -> None:
    raise SystemExit


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda index: index.update(schema=9), "schema 9"),
        (lambda index: index["tensors"].pop("model/bias"), "another module"),
        (lambda index: index["tensors"]["model/bias"].update(file="../../etc/passwd"), "names no file"),
        (lambda index: index["tensors"]["model/bias"].update(dtype="nn"), "not a type"),
        (lambda index: index["tensors"]["model/bias"].update(file="0.npy"), "is due"),
    ],
)
def test_a_damaged_state_is_refused(tmp_path: Path, damage: Any, words: str) -> None:
    net = torch.nn.Linear(2, 3)
    save_state(net, tmp_path / "state")
    index = json.loads((tmp_path / "state/index.json").read_text())
    damage(index)
    (tmp_path / "state/index.json").write_text(json.dumps(index))
    with pytest.raises(FormatError, match=words):
        load_state(net, tmp_path / "state")


def test_no_state(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="not a saved state"):
        load_state(torch.nn.Linear(2, 3), tmp_path)


def test_all_ranks_say_what_is_wrong_with_a_state(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(RanksFailed) as caught:
        pool.run(mesh_of(h=2), "local_tasks:train", {"load": str(tmp_path / "nowhere")})
    assert "not a saved state" in str(caught.value)
    (tmp_path / "file").write_text("no folder")
    for found in pool.run(mesh_of(h=2), "local_tasks:states_go_wrong", str(tmp_path)):
        nowhere, alone, unchanged = found
        assert nowhere == "InputError: rank 0: the state cannot be written: Not a directory" and unchanged
        assert alone == "InputError: rank 1: the state cannot be read: Input/output error"


@pytest.mark.parametrize("mesh", [mesh_of(h=2), mesh_of(h=2, w=2)], ids=str)
def test_torchs_tools_see_all_of_the_weights(pool: Pool, mesh: MeshSpec) -> None:
    """Norms of gradients and of weights, LAMB, moving averages."""
    wanted = plain_tools()
    for found in pool.run(mesh, "weight_tools:tools", None):
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            torch.testing.assert_close(
                found[name], value, rtol=1e-9, atol=1e-11, msg=f"{name}: {found[name]} for {value}"
            )


def test_state_dicts_of_torch(pool: Pool, tmp_path: Path) -> None:
    """`torch.distributed.checkpoint` under other numbers of ranks; whole weights from and for one process."""
    folder = str(tmp_path / "checkpoint")
    wholes = pool.run(mesh_of(h=2), "weight_tools:save_with_torch", folder)
    shapes = {
        name: p.shape for name, p in LocalNet(image=(13, 11), layers=((4, 5), (3, 4)), classes=6).named_parameters()
    }
    assert {name: t.shape for name, t in wholes[0].items()} == shapes
    losses, _ = plain({"optimizer": "adam", "steps": 3})
    for found, loss in pool.run(mesh_of(h=2, w=2), "weight_tools:load_with_torch", folder):
        for name, weight in wholes[0].items():
            assert torch.equal(found[name], weight), name
        assert loss == pytest.approx(losses[2], rel=1e-10)
    for found in pool.run(mesh_of(h=2), "weight_tools:load_whole", wholes[0]):
        for name, weight in wholes[0].items():
            assert torch.equal(found[name], weight), name


def test_what_would_be_wrong_with_weights_is_refused(pool: Pool, tmp_path: Path) -> None:
    words = ("something that was made before holds them whole", "torch has no name for how it would be cut")
    words += ("is the box of another rank", "was written to after the forward pass", "cannot be pickled")
    for said in pool.run(mesh_of(h=2), "weight_tools:refused", str(tmp_path / "rank0.pt")):
        for told, wanted in zip(said, words, strict=True):
            assert wanted in told, told
