"""What people write around a network, by name: the same code runs in one process and on ranks.

Each takes a `Lab` and returns numbers and tensors, which must be the same wherever it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import tilegrad
from tilegrad.distributed import Part, part

HABITS: dict[str, Callable[[Lab], Any]] = {}


@dataclass(frozen=True)
class Lab:
    """Where a habit is lived: on a mesh, or in one process."""

    mesh: Any = None

    def wrap(self, net: nn.Module, **options: Any) -> Any:
        return net if self.mesh is None else tilegrad.distribute(net, self.mesh, **options)

    def cut(self, x: Tensor) -> Any:
        return x if self.mesh is None else part(x, self.mesh)

    def whole(self, x: Any) -> Tensor:
        return x.whole() if isinstance(x, Part) else x.detach()

    @property
    def samples_are_cut(self) -> bool:
        return self.mesh is not None and "batch" in self.mesh.mesh_dim_names

    def labels(self, y: Tensor) -> Any:
        """A label for every image."""
        return self.cut(y) if self.samples_are_cut else y


def habit(function: Callable[[Lab], Any]) -> Callable[[Lab], Any]:
    HABITS[function.__name__] = function
    return function


def live(mesh: Any, names: list[str]) -> dict[str, Any]:
    """The habits of these names, one after another."""
    found = {}
    for name in names:
        torch.manual_seed(0)
        found[name] = HABITS[name](Lab(mesh))
    return found


class Segmenter(nn.Module):
    """An image in, a map of classes out."""

    def __init__(self, norm: bool = True) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4) if norm else nn.Identity()
        self.last = nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)).relu())


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).relu().mean((2, 3)))


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.map, self.head = Segmenter(), nn.Conv2d(3, 3, 1), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = self.body(x)
        return self.map(made), self.head(made.mean((2, 3)))


def data(size: tuple[int, int] = (12, 10), seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Images, a class for every pixel, a class for every image."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(4, 2, *size, generator=draw, dtype=torch.float64)
    return x, torch.randint(0, 3, (4, *size), generator=draw), torch.randint(0, 3, (4,), generator=draw)


def train(lab: Lab, net: nn.Module, loss: Callable[[Any, Any], Any], optimizer: Any = None, **options: Any) -> Any:
    """Losses of three steps, and the weights after them."""
    run = lab.wrap(net.double(), **options)
    optimizer = optimizer or torch.optim.SGD(run.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(3):
        x, mask, _ = data(seed=step)
        optimizer.zero_grad()
        found = loss(run(lab.cut(x)), lab.cut(mask))
        found.backward()
        optimizer.step()
        losses.append(found.detach())
    return losses, weights(net)


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in net.state_dict().items()}


# -- losses outside ----------------------------------------------------------------------------------------------------


@habit
def a_cross_entropy(lab: Lab) -> Any:
    return train(lab, Segmenter(), F.cross_entropy)


@habit
def weighted_classes_and_one_ignored(lab: Lab) -> Any:
    scale = torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)
    return train(lab, Segmenter(), lambda out, mask: F.cross_entropy(out, mask, scale, ignore_index=2))


@habit
def a_loss_module(lab: Lab) -> Any:
    return train(lab, Segmenter(), nn.CrossEntropyLoss(label_smoothing=0.1))


@habit
def a_mean_and_a_sum(lab: Lab) -> Any:
    return train(lab, Segmenter(), lambda out, _: out.square().mean() + 1e-3 * out.abs().sum())


@habit
def distances(lab: Lab) -> Any:
    def loss(out: Any, mask: Any) -> Any:
        wanted = mask.double().unsqueeze(1)
        first = out[:, :1]
        return F.mse_loss(first, wanted) + F.l1_loss(first, wanted) + F.smooth_l1_loss(first, wanted)

    return train(lab, Segmenter(), loss)


@habit
def a_dice_loss(lab: Lab) -> Any:
    def loss(out: Any, mask: Any) -> Any:
        found = out.softmax(1)[:, 1]
        wanted = (mask == 1).double()
        return 1 - (2 * (found * wanted).sum((1, 2)) / (found + wanted).sum((1, 2))).mean()

    return train(lab, Segmenter(), loss)


@habit
def a_binary_loss_of_each_pixel(lab: Lab) -> Any:
    def loss(out: Any, mask: Any) -> Any:
        each = F.binary_cross_entropy_with_logits(out[:, 0], (mask > 0).double(), reduction="none")
        return torch.where(mask == 2, 0.0, each).sum() / (mask != 2).sum()

    return train(lab, Segmenter(), loss)


@habit
def likelihoods(lab: Lab) -> Any:
    return train(lab, Segmenter(), lambda out, mask: F.nll_loss(F.log_softmax(out, 1), mask))


@habit
def labels_of_images(lab: Lab) -> Any:
    net = Classifier().double()
    run, (x, _, y) = lab.wrap(net), data()
    loss = F.cross_entropy(run(lab.cut(x)), lab.labels(y))
    loss.backward()
    return loss.detach(), [p.grad for p in net.parameters()]


@habit
def two_outputs_two_losses(lab: Lab) -> Any:
    net = TwoHeads().double()
    run, (x, mask, y) = lab.wrap(net), data()
    image, label = run(lab.cut(x))
    loss = F.cross_entropy(image, lab.cut(mask)) + 0.5 * F.cross_entropy(label, lab.labels(y))
    loss.backward()
    return loss.detach(), [p.grad for p in net.parameters()]


@habit
def a_temperature_outside_of_the_module(lab: Lab) -> Any:
    net, heat = Segmenter().double(), nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    run, (x, mask, _) = lab.wrap(net), data()
    F.cross_entropy(run(lab.cut(x)) / heat, lab.cut(mask)).backward()
    return heat.grad, [p.grad for p in net.parameters()]


# -- loops -------------------------------------------------------------------------------------------------------------


@habit
def gradients_of_several_steps(lab: Lab) -> Any:
    net = Segmenter(norm=False).double()
    run = lab.wrap(net)
    for step in range(3):
        x, mask, _ = data(seed=step)
        (F.cross_entropy(run(lab.cut(x)), lab.cut(mask)) / 3).backward()
    return [p.grad for p in net.parameters()]


@habit
def norms_are_clipped(lab: Lab) -> Any:
    net = Segmenter().double()
    run, (x, mask, _) = lab.wrap(net), data()
    F.cross_entropy(run(lab.cut(x)), lab.cut(mask)).backward()
    norm = nn.utils.clip_grad_norm_(run.parameters(), 0.01)
    return norm, [p.grad for p in net.parameters()]


@habit
def a_moving_average(lab: Lab) -> Any:
    net = Segmenter().double()
    run = lab.wrap(net)
    average = AveragedModel(run, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(run.parameters(), lr=0.1)
    for step in range(3):
        x, mask, _ = data(seed=step)
        optimizer.zero_grad()
        F.cross_entropy(run(lab.cut(x)), lab.cut(mask)).backward()
        optimizer.step()
        average.update_parameters(run)
    average.eval()
    with torch.no_grad():
        made = lab.whole(average(lab.cut(data()[0])))
    return made, [p.detach() for p in average.module.parameters()]


@habit
def another_optimizer_and_a_schedule(lab: Lab) -> Any:
    net = Segmenter().double()
    run = lab.wrap(net)
    optimizer = torch.optim.AdamW(run.parameters(), lr=0.01, foreach=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    for step in range(4):
        x, mask, _ = data(seed=step)
        optimizer.zero_grad(set_to_none=False)
        F.cross_entropy(run(lab.cut(x)), lab.cut(mask)).backward()
        optimizer.step()
        schedule.step()
    return weights(net)


@habit
def sizes_that_change(lab: Lab) -> Any:
    net = Segmenter().double()
    run, found = lab.wrap(net), []
    optimizer = torch.optim.SGD(run.parameters(), lr=0.1)
    for at, size in enumerate([(12, 10), (8, 14), (12, 10), (9, 7)]):
        x, mask, _ = data(size, at)
        optimizer.zero_grad()
        loss = F.cross_entropy(run(lab.cut(x)), lab.cut(mask))
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return found, weights(net)


@habit
def scores_between_steps(lab: Lab) -> Any:
    net, found = Segmenter().double(), []
    run = lab.wrap(net)
    for step in range(2):
        x, mask, _ = data(seed=step)
        run.train()
        F.cross_entropy(run(lab.cut(x)), lab.cut(mask)).backward()
        run.eval()
        with torch.no_grad():
            best = run(lab.cut(x)).argmax(1)
            there = lab.cut(mask)
            hits = (best == there).float().mean()
            both = ((best == 1) & (there == 1)).sum()
            found += [hits, both, lab.whole(best)]
    return found, [p.grad for p in net.parameters()]


@habit
def layers_frozen_and_not(lab: Lab) -> Any:
    net, found = Segmenter().double(), []
    run = lab.wrap(net)
    for frozen in (True, False, True):
        run.first.requires_grad_(not frozen)
        run.zero_grad()
        x, mask, _ = data()
        F.cross_entropy(run(lab.cut(x)), lab.cut(mask)).backward()
        found += [p.grad for p in net.parameters()]
    return found


@habit
def autocast_on_off_and_on(lab: Lab) -> Any:
    net, found = Segmenter().float(), []
    run, (x, mask, _) = lab.wrap(net), data()
    for on in (True, False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            loss = F.cross_entropy(run(lab.cut(x.float())), lab.cut(mask))
        loss.backward()
        found.append(loss.detach())
    return found  # in half precision: compared loosely


@habit
def weights_are_saved_and_loaded(lab: Lab) -> Any:
    net = Segmenter().double()
    run, (x, mask, _) = lab.wrap(net), data()
    before = {name: t.clone() for name, t in run.state_dict().items()}
    optimizer = torch.optim.SGD(run.parameters(), lr=0.5)
    first = F.cross_entropy(run(lab.cut(x)), lab.cut(mask))
    first.backward()
    optimizer.step()
    run.load_state_dict(before)
    again = F.cross_entropy(run(lab.cut(x)), lab.cut(mask))
    return first.detach(), again.detach()


@habit
def parts_like_tensors(lab: Lab) -> Any:
    net = Segmenter().double()
    out = lab.wrap(net)(lab.cut(data()[0]))
    single = out.detach().to(torch.float32)
    found = [single.max(), single.min(), single.std(), out.shape == (4, 3, 12, 10), out.dtype == torch.float64]
    found += [lab.whole(torch.cat([out, 2 * out], 1)), lab.whole(out.clamp(min=0).sqrt()), out.numel(), out.size(2)]
    found += [lab.whole(out.mean(1)), lab.whole(out.sum((2, 3))), lab.whole(F.max_pool2d(out, 2)), out.ndim]
    return [*found, lab.whole(1 - out), lab.whole(torch.stack([out, out]).sum(0)), not out.detach().requires_grad]


@habit
def the_best_class_and_its_score(lab: Lab) -> Any:
    net = Segmenter().double()
    score, best = lab.wrap(net)(lab.cut(data()[0])).max(dim=1)
    score.sum().backward()
    return lab.whole(score), lab.whole(best), [p.grad for p in net.parameters()]


@habit
def a_seed_for_every_rank(lab: Lab) -> Any:
    torch.manual_seed(dist.get_rank() if lab.mesh is not None else 0)
    return train(lab, Segmenter(), F.cross_entropy)


@habit
def gradients_of_the_image(lab: Lab) -> Any:
    net, (x, mask, _) = Segmenter().double(), data()
    given = lab.cut(x.requires_grad_())
    F.cross_entropy(lab.wrap(net)(given), lab.cut(mask)).backward()
    return lab.whole(given.grad)


@habit
def a_network_after_another(lab: Lab) -> Any:
    first, second = Segmenter().double(), nn.Conv2d(3, 3, 3, padding=1).double()
    x, mask, _ = data()
    F.cross_entropy(lab.wrap(second)(lab.wrap(first)(lab.cut(x)).tanh()), lab.cut(mask)).backward()
    return [p.grad for net in (first, second) for p in net.parameters()]
