"""Ranks that do not do the same, by name: each is a task of which every rank must say the same, and go on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from habits import Lab, Segmenter, data
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

import tilegrad
from tilegrad.distributed import Part, part
from tilegrad.errors import TilegradError

QUARRELS: dict[str, Callable[[Any], Any]] = {}


def quarrel(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    QUARRELS[function.__name__] = function
    return function


def say(mesh: Any, names: list[str]) -> dict[str, str]:
    """What this rank is told, or "nothing", for each."""
    found = {}
    for name in names:
        torch.manual_seed(0)
        try:
            QUARRELS[name](mesh)
        except TilegradError as error:
            found[name] = f"{type(error).__name__}: {error}"
        else:
            found[name] = "nothing"
    return found


def odd() -> int:
    """1 on the rank that does otherwise."""
    return int(dist.get_rank() == 1)


def net() -> nn.Module:
    return Segmenter().double()


def train(mesh: Any, run: Any, seed: int = 0) -> None:
    x, mask, _ = data(seed=seed)
    F.cross_entropy(run(part(x, mesh)), part(mask, mesh)).backward()


# -- refused -----------------------------------------------------------------------------------------------------------


@quarrel
def other_weights_at_the_start(mesh: Any) -> None:
    torch.manual_seed(dist.get_rank())
    tilegrad.distribute(net(), mesh, agree="check")


@quarrel
def other_statistics_at_the_start(mesh: Any) -> None:
    module = net()
    module.norm.running_mean.fill_(dist.get_rank())
    tilegrad.distribute(module, mesh, agree="check")


@quarrel
def other_labels(mesh: Any) -> None:
    run = tilegrad.distribute(Labelled().double(), mesh)
    x, _, labels = data()
    for step in range(3):
        run(part(x, mesh), Lab(mesh).labels(labels + (odd() and step == 1)))


class Labelled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Segmenter()

    def forward(self, x: Any, labels: Any) -> Any:
        return F.cross_entropy(self.body(x).mean((2, 3)), labels)


@quarrel
def another_image(mesh: Any) -> None:
    train(mesh, tilegrad.distribute(net(), mesh), seed=odd())


@quarrel
def a_box_that_is_not_the_same(mesh: Any) -> None:
    """Cut along fewer axes than there are: ranks that have one box."""
    labels = data()[2].double()
    Part.from_local(labels + odd(), mesh, dims={}).sum()


@quarrel
def a_step_of_the_optimizer_is_skipped(mesh: Any) -> None:
    run = tilegrad.distribute(net(), mesh)
    optimizer = torch.optim.SGD(run.parameters(), lr=0.1)
    for step in range(3):
        train(mesh, run)
        if not (odd() and step == 1):
            optimizer.step()


@quarrel
def a_step_is_skipped(mesh: Any) -> None:
    """`continue`, where one rank does not like its image."""
    run = tilegrad.distribute(net(), mesh)
    for step in range(4):
        if odd() and step == 2:
            continue
        train(mesh, run, seed=step)


@quarrel
def weights_are_loaded_by_the_first_rank_alone(mesh: Any) -> None:
    run = tilegrad.distribute(net(), mesh)
    train(mesh, run)
    if dist.get_rank() == 0:
        run.load_state_dict({name: t + 1 for name, t in run.state_dict().items()})
    train(mesh, run)


@quarrel
def another_rate_of_learning(mesh: Any) -> None:
    run = tilegrad.distribute(net(), mesh)
    optimizer = torch.optim.SGD(run.parameters(), lr=0.1 + odd())
    for _ in range(3):
        train(mesh, run)
        optimizer.step()


@quarrel
def a_rank_without_its_image(mesh: Any) -> None:
    run = tilegrad.distribute(net(), mesh)
    x = part(data()[0], mesh)
    run(None if odd() else x)


@quarrel
def an_image_that_cannot_be_read(mesh: Any) -> None:
    run = tilegrad.distribute(net(), mesh)
    run(Torn() if odd() else part(data()[0], mesh))


class Torn:
    """An array whose file is gone."""

    shape, dtype, ndim = (4, 2, 12, 10), torch.float64, 4

    def __getitem__(self, key: Any) -> Any:
        raise FileNotFoundError(2, "No such file or directory", "image.zarr")


@quarrel
def an_array_turned_by_one_rank(mesh: Any) -> None:
    """An augmentation with a seed for every rank."""
    x = data()[0].numpy()
    tilegrad.distribute(net(), mesh)(part(x[:, :, ::-1] if odd() else x, mesh))


@quarrel
def a_crop_of_a_file_by_one_rank(mesh: Any) -> None:
    first = np.load(_saved_image(), mmap_mode="r")
    tilegrad.distribute(net(), mesh)(part(first[:, :, odd() : odd() + 11], mesh))


@quarrel
def a_crop_of_an_opened_file_by_one_rank(mesh: Any) -> None:
    image = tilegrad.open(_saved_image())
    tilegrad.distribute(Segmenter(), mesh)(image[:, :, odd() : odd() + 11])


@quarrel
def an_opened_file_turned_by_one_rank(mesh: Any) -> None:
    image = tilegrad.open(_saved_image())
    tilegrad.distribute(Segmenter(), mesh)(image.flip(3) if odd() else image)


@quarrel
def an_array_that_is_sliced_of_another_content(mesh: Any) -> None:
    tilegrad.distribute(net(), mesh)(part(Sliced(data(seed=odd())[0].numpy()), mesh))


class Sliced:
    """Something on a server, perhaps."""

    def __init__(self, array: Any):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __getitem__(self, key: Any) -> Any:
        return self.array[key]


def _saved_image() -> Path:
    """One file for each rank, of one name: they are alike."""
    path = Path(tempfile.mkdtemp()) / "image.npy"
    np.save(path, data()[0].numpy())
    return path


@quarrel
def a_style_that_each_has_drawn(mesh: Any) -> None:
    """What a rank has computed is told, too: a code with noise, and a seed for every rank."""
    mean = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(dist.get_rank())
    tilegrad.distribute(Shifted().double(), mesh)(part(data()[0], mesh), mean + torch.randn(2, dtype=torch.float64))


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Any, style: Any) -> Any:
        return self.conv(x) + style.view(1, 2, 1, 1)


@quarrel
def another_loss_outside(mesh: Any) -> None:
    """Of an output that all ranks have. Only one of them counts: who has another label is told in the next call."""
    run = tilegrad.distribute(Pooled().double(), mesh)
    for _ in range(2):
        F.cross_entropy(run(part(data()[0], mesh)), torch.tensor(odd())).backward()


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Segmenter()

    def forward(self, x: Any) -> Any:
        return self.body(x).mean((0, 2, 3))


# -- refused everywhere ------------------------------------------------------------------------------------------------


@quarrel
def a_loss_of_the_box(mesh: Any) -> None:
    x, mask, _ = data()
    out = tilegrad.distribute(net(), mesh)(part(x, mesh))
    F.cross_entropy(out.local, part(mask, mesh).local).backward()


@quarrel
def a_whole_mask(mesh: Any) -> None:
    x, mask, _ = data()
    F.cross_entropy(tilegrad.distribute(net(), mesh)(part(x, mesh)), mask)


@quarrel
def a_part_of_another_mesh(mesh: Any) -> None:
    other = DeviceMesh("cpu", mesh.mesh.flatten(), mesh_dim_names=("w",))
    tilegrad.distribute(net(), mesh)(part(data()[0], other))


@quarrel
def a_number_from_a_part(mesh: Any) -> None:
    float(part(data()[0], mesh))


@quarrel
def a_decision_on_a_part(mesh: Any) -> None:
    if part(data()[0], mesh) > 0:
        pass


@quarrel
def backward_from_a_part(mesh: Any) -> None:
    tilegrad.distribute(net(), mesh)(part(data()[0], mesh)).backward()


@quarrel
def a_write_to_a_part(mesh: Any) -> None:
    part(data()[0], mesh).add_(1)


@quarrel
def a_part_is_assigned_to(mesh: Any) -> None:
    part(data()[0], mesh)[0] = 1


@quarrel
def what_has_no_box_rule(mesh: Any) -> None:
    torch.linalg.inv(part(torch.eye(12).expand(4, 2, 12, 12), mesh))


@quarrel
def boxes_that_do_not_fit(mesh: Any) -> None:
    Part.from_local(torch.zeros(4, 2, 6, 5 + odd()), mesh)


@quarrel
def norms_that_ask_by_themselves(mesh: Any) -> None:
    tilegrad.distribute(nn.SyncBatchNorm.convert_sync_batchnorm(net()), mesh)(part(data()[0], mesh))


@quarrel
def axes_beside_the_image(mesh: Any) -> None:
    both = DeviceMesh("cpu", mesh.mesh.reshape(1, *mesh.mesh.shape), mesh_dim_names=("dp", *mesh.mesh_dim_names))
    tilegrad.distribute(net(), both)


@quarrel
def a_part_of_all_axes(mesh: Any) -> None:
    both = DeviceMesh("cpu", mesh.mesh.reshape(1, *mesh.mesh.shape), mesh_dim_names=("dp", *mesh.mesh_dim_names))
    part(data()[0], both)


@quarrel
def a_name_that_means_nothing(mesh: Any) -> None:
    tilegrad.distribute(net(), DeviceMesh("cpu", mesh.mesh, mesh_dim_names=tuple("xyz"[: mesh.mesh.ndim])))


@quarrel
def words_that_mean_nothing(mesh: Any) -> None:
    told = list(_told(mesh))
    raise TilegradError(" | ".join(told))


def _told(mesh: Any) -> Iterator[str]:
    for options in ({"agree": "perhaps"}, {"replicas": "maybe"}, {"exchange": "never"}):
        try:
            tilegrad.distribute(net(), mesh, **options)
        except TilegradError as error:
            yield error.what


# -- allowed -----------------------------------------------------------------------------------------------------------


@quarrel
def written_to_and_put_back(mesh: Any) -> None:
    """One rank looks at other weights for a while: the values are what counts."""
    run = tilegrad.distribute(net(), mesh)
    train(mesh, run)
    with torch.no_grad():
        for parameter in run.parameters() if odd() else ():
            parameter.copy_(parameter.clone())
    train(mesh, run)


@quarrel
def computed_alike(mesh: Any) -> None:
    """In its last bits what each has computed may differ."""
    run, drawn = tilegrad.distribute(Shifted().double(), mesh), torch.randn(2, dtype=torch.float64)
    style = drawn.requires_grad_() * (1 + 1e-9 * odd())
    for _ in range(2):
        run(part(data()[0], mesh), style).sum().backward(retain_graph=True)


@quarrel
def nobody_looks(mesh: Any) -> None:
    run = tilegrad.distribute(net(), mesh, agree="off")
    run(part(data(seed=odd())[0], mesh))
