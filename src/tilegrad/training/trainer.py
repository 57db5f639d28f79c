"""The loop: steps, validation, checkpoints.

Rule T1  A step happens whole or not at all: whatever ends it early leaves weights, statistics, gradients and random
         generators as they were before it.
Rule T2  What is drawn at random (order, flips, turns) follows from the seed, the epoch and the image alone, or from
         generators whose state is in the checkpoint: a run that goes on repeats, bit by bit, what it would have done.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import __version__
from ..errors import FormatError, InputError, RunError, TilegradError
from ..modules.tiled import tile
from ..progress import Progress
from ..units import format_bytes
from .checkpoint import BEST, LAST, load_checkpoint, random_state, remove_drafts, save_checkpoint, set_random_state
from .config import METRICS, TrainingConfig, make
from .gauge import Gauge
from .interrupts import Interrupts
from .metrics import MetricLog, scores
from .objective import Objective
from .ranks import TrainingRanks
from .reader import Example, Reader, together, unreadable
from .samples import Labelled, check_labels, class_names, fingerprint, read_samples, split

_log = logging.getLogger("tilegrad")
Groups = list[list[Example]]
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass
class Position:
    """Where a run is: all that changes beside weights and generators."""

    epoch: int = 0
    image: int = 0  # how many of the epoch are behind us
    step: int = 0
    order: list[int] = field(default_factory=list)  # of the epoch's images
    best: float | None = None
    bad: dict[str, str] = field(default_factory=dict)  # images that are left out, and why


class Stopped(Exception):
    """A signal ended the run; the checkpoint is written."""

    def __init__(self, signal: int):
        super().__init__(signal)
        self.signal = signal


class Trainer:
    """Trains `net` as `config` says. `say` gets a line for each epoch and for what went wrong."""

    def __init__(self, config: TrainingConfig, net: nn.Module, say: Callable[[str], None] = _log.info):
        self.config, self.folder = config, Path(config.out)
        self.ranks = TrainingRanks(config.mesh, config.device)
        self.say = say if self.ranks.first else _log.debug
        self.samples, self.held_back = _samples(config)
        shared = self.held_back if isinstance(config.validate, float) else []
        self.classes = config.classes or class_names([*self.samples, *shared])
        if config.task == "classification":
            check_labels([*self.samples, *self.held_back], self.classes)
        weights = class_weights(config, self.classes, self.samples)
        self.reader = Reader(config, self.classes, weights, net)
        self.reader.expect_as(self.samples)
        masks = config.task == "segmentation"
        values = list(self.classes.values()) if masks else range(len(self.classes))
        self.objective = Objective(net, values, weights, config.ignore_index, masks).to(config.device)
        if not any(p.requires_grad for p in net.parameters()):
            raise InputError("the model has no parameters: there is nothing to train", where="key 'model'")
        self.tiled = self.ranks.tiled(self.objective, config.budget) or tile(
            self.objective, budget=config.budget, halos=config.halos
        )
        self.optimizer = make(config.optimizer, torch.optim, torch.optim.Optimizer, "optimizer", net.parameters())
        schedules = torch.optim.lr_scheduler
        self.schedule: Any = None
        if config.schedule is not None:
            self.schedule = make(config.schedule, schedules, schedules.LRScheduler, "schedule", self.optimizer)
        self.scaler = torch.amp.GradScaler(torch.device(config.device).type, enabled=config.amp == "float16")
        self.at = Position()
        self.gauge = Gauge(self.objective, config.device)

    # -- a run ---------------------------------------------------------------------------------------------------------

    def run(self, *, resume: bool = False) -> Position:
        """Train to the end. A signal raises `Stopped`, whatever else ends the run its own error: in any case there is
        a checkpoint of the last step that was finished."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.ranks.first:
            remove_drafts(self.folder)
        begin = self._load() if resume else self._fresh()
        self.ranks.wait()  # nobody writes before all have looked
        self.log = MetricLog(self.folder, begin, self.at.step, tensorboard=self.config.tensorboard, on=self.ranks.first)
        steps = -(-len(self.samples) // self._per_step)
        with Interrupts(together=self.ranks.many) as self.interrupts, Progress("training") as self.progress:
            self.gauge.begin(self.at.step, steps * self.config.epochs)
            try:
                if not resume:
                    self._checkpoint()
                while self.at.epoch < self.config.epochs:
                    self._epoch()
            except KeyboardInterrupt:
                self._checkpoint()
                raise Stopped(self.interrupts.signal) from None
            except Exception:
                self._checkpoint()
                raise
            finally:
                self.log.close()
                self.ranks.close()
        return self.at

    def _fresh(self) -> int:
        if (self.folder / LAST).exists():
            hint = "--resume to go on with it, or another folder: --out run2"
            raise InputError("there is a run in this folder already", where=str(self.folder), hint=hint)
        return 0

    @property
    def _per_step(self) -> int:
        return self.config.batch * self.config.accumulate

    def _epoch(self) -> None:
        at, config = self.at, self.config
        at.order = at.order or _permutation(len(self.samples), config.seed, at.epoch)
        self._train_mode()
        while at.image < len(at.order):
            chosen = at.order[at.image : at.image + self._per_step]
            found = self._step(chosen)
            at.image += len(chosen)
            if found is not None:
                at.step += 1
                self._tell(found)
                if config.checkpoint_steps and at.step % config.checkpoint_steps == 0:
                    self._checkpoint()
        scored = self._validate() if self.held_back else {}
        if self.schedule is not None and config.schedule_each == "epoch":
            plateau = isinstance(self.schedule, torch.optim.lr_scheduler.ReduceLROnPlateau)
            self.schedule.step(*([scored.get("loss", 0.0)] if plateau else []))
        self._end_epoch(scored)

    def _end_epoch(self, found: dict[str, float]) -> None:
        at, value = self.at, found.get(self.config.best)
        at.epoch, at.image, at.order = at.epoch + 1, 0, []
        words = ", ".join(f"{name} {number:.4g}" for name, number in found.items())
        self.say(
            f"epoch {at.epoch} of {self.config.epochs}: step {at.step}, {self.gauge.mean_loss():.4g} in training"
            + (f"; held back: {words}" if words else "")
        )
        if value is not None and isfinite(value):
            self.log.add(step=at.step, epoch=at.epoch, **{f"validation_{name}": each for name, each in found.items()})
            if at.best is None or METRICS[self.config.best](value, at.best) != at.best:
                at.best = value
                self._checkpoint(BEST)
        self._checkpoint()

    def _train_mode(self) -> None:
        self.objective.train()
        if self.config.frozen_norms:
            for module in self.objective.modules():
                if isinstance(module, NORMS):
                    module.eval()

    # -- a step --------------------------------------------------------------------------------------------------------

    def _step(self, chosen: Sequence[int]) -> float | None:
        """The loss; None where none of the images can be used."""
        before = self._remember()
        while True:
            groups: Groups = []
            try:
                with self.interrupts.droppable():
                    groups = self._groups(chosen)
                    if not groups:
                        return None
                    with self.gauge.step(groups):
                        loss = self._gradients(groups)
                break
            except BaseException as error:
                self._restore(before)
                if isinstance(error, KeyboardInterrupt) or not self._leave_out(groups):
                    raise
        if not isfinite(loss) and not self.scaler.is_enabled():
            self._restore(before)
            names = ", ".join(str(example.sample.image) for group in groups for example in group)
            hint = "a smaller learning rate; --resume goes on before this step"
            raise RunError(f"the loss of step {self.at.step + 1} is {loss}", where=names, hint=hint)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.schedule is not None and self.config.schedule_each == "step":
            self.schedule.step()
        return loss

    def _groups(self, chosen: Sequence[int]) -> Groups:
        """Batches. In one of several, all images have the size of the first."""
        found: Groups = []
        for index in chosen:
            sample = self.samples[index]
            if str(sample.image) in self.at.bad:
                continue
            try:
                example = self.reader.open(sample, random.Random(f"{self.config.seed} {self.at.epoch} {index}"))
            except FormatError as error:
                self._bad(sample, error)
                continue
            if not found or len(found[-1]) == self.config.batch:
                found.append([])
            try:
                together([*found[-1], example])
                found[-1].append(example)
            except FormatError as error:
                self._bad(sample, error, ever=False)  # in another batch it may be of use
        return found

    def _gradients(self, groups: Groups) -> float:
        """As one batch of all images would give them: the mean over what counts, whatever group it is in."""
        weights = [sum(example.weight for example in group) for group in groups]
        parts = []
        for group, weight in zip(groups, weights, strict=True):
            loss = self._run(group) * (weight / sum(weights))
            self.scaler.scale(loss).backward()
            parts.append(loss.detach())
        return float(torch.stack(parts).sum())

    def _run(self, group: list[Example]) -> Any:
        image, target = together(group)
        target = target.to(self.config.device) if isinstance(target, Tensor) else target
        kind, dtype = torch.device(self.config.device).type, getattr(torch, self.config.amp or "bfloat16")
        with torch.autocast(kind, dtype, enabled=self.config.amp is not None):
            return self.tiled(*self.ranks.parts(image, target))

    def _remember(self) -> dict[str, Any]:
        buffers = {name: buffer.clone() for name, buffer in self.objective.named_buffers()}
        return {"buffers": buffers, "random": random_state()}

    @torch.no_grad()
    def _restore(self, before: dict[str, Any]) -> None:
        """Rule T1."""
        for name, buffer in self.objective.named_buffers():
            buffer.copy_(before["buffers"][name])
        set_random_state(before["random"])
        self.optimizer.zero_grad(set_to_none=True)

    # -- images that cannot be used ------------------------------------------------------------------------------------

    def _bad(self, sample: Labelled, error: FormatError, *, ever: bool = True) -> None:
        if self.config.on_bad == "stop":
            hint = error.hint or "--on-bad skip leaves it out"
            raise FormatError(f"{error.what} (in {sample.where})", where=error.where, hint=hint) from error
        self.say(f"left out: {error.where}: {error.what}")
        if ever:
            self.at.bad[str(sample.image)] = error.what
        self.log.add(step=self.at.step, epoch=self.at.epoch + 1, bad=error.where, why=error.what)

    def _leave_out(self, groups: Groups) -> bool:
        """A step failed: which of its images cannot be read to their end?"""
        found = [(example, unreadable(example)) for group in groups for example in group]
        for example, error in found:
            if error is not None:
                self._bad(example.sample, error)
        return any(error is not None for _, error in found)

    # -- validation ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _validate(self) -> dict[str, float]:
        self.objective.eval()
        loss, weight, counts = 0.0, 0.0, torch.zeros(3, len(self.classes), dtype=torch.int64)
        for sample in self.held_back:
            group: Groups = []
            if str(sample.image) in self.at.bad:
                continue
            try:
                with self.interrupts.droppable():
                    group = [[self.reader.open(sample)]]
                    one, right = self._run(group[0])
            except TilegradError as error:
                if isinstance(error, FormatError) and not group:
                    self._bad(sample, error)
                elif not self._leave_out(group):
                    raise
                continue
            loss, weight = loss + float(one) * group[0][0].weight, weight + group[0][0].weight
            counts += right.cpu()
        found = {"loss": loss / weight if weight else float("nan"), **scores(counts)}
        return found if self.config.task == "segmentation" else {k: v for k, v in found.items() if k != "iou"}

    # -- what is written -----------------------------------------------------------------------------------------------

    def _tell(self, loss: float) -> None:
        at, gauge, config = self.at, self.gauge, self.config
        gauge.count(loss)
        rate = {f"lr{k or ''}": group["lr"] for k, group in enumerate(self.optimizer.param_groups)}
        rate = {name: float(value) for name, value in rate.items()}
        self.log.add(step=at.step, epoch=at.epoch + 1, loss=loss, **rate, **gauge.figures())
        budget = "" if config.budget is None else f" of {config.budget}"
        news = f"loss {loss:.4g}, {gauge.images_per_s:.3g} images/s, peak {format_bytes(gauge.peak_bytes)}{budget}"
        self.progress.tell(f"{news}, {gauge.left()} left", at.step, gauge.total)
        self.progress.show()

    def _checkpoint(self, name: str = LAST) -> None:
        if not self.ranks.first:
            return
        try:
            save_checkpoint(self._state(), self.folder / name)
        except InputError as error:  # a full disk: the one before stays, and so does what was learned
            self.say(f"{error.what}; the one before it is untouched: {self.folder / name}")

    def _state(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "model": self.objective.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule and self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "random": random_state(),
            "at": asdict(self.at),
            "classes": self.classes,
            "config": self.config.to_json(),
            "samples": fingerprint(self.samples),
            "metrics_bytes": self.log.size,
        }

    def _load(self) -> int:
        path = self.folder / LAST
        state = load_checkpoint(path, self.config.device)
        if state["samples"] != fingerprint(self.samples) or state["classes"] != self.classes:
            raise InputError(
                "the checkpoint is of other images or classes", where=str(path), hint="another folder: --out"
            )
        try:
            self.objective.net.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            if self.schedule is not None and state["schedule"] is not None:
                self.schedule.load_state_dict(state["schedule"])
            self.scaler.load_state_dict(state["scaler"])
        except (RuntimeError, ValueError, KeyError) as error:
            said = str(error).strip().splitlines()[0]
            raise InputError(f"the checkpoint is of another model or optimizer: {said}", where=str(path)) from None
        set_random_state(state["random"])
        self.at = Position(**state["at"])
        return int(state["metrics_bytes"])


def _samples(config: TrainingConfig) -> tuple[list[Labelled], list[Labelled]]:
    found = read_samples(config.train, config.task)
    if isinstance(config.validate, float):
        return split(found, config.validate, config.seed)
    return found, read_samples(config.validate, config.task) if config.validate is not None else []


def _permutation(count: int, seed: int, epoch: int) -> list[int]:
    draw = list(range(count))
    random.Random(f"{seed} {epoch}").shuffle(draw)
    return draw


def class_weights(config: TrainingConfig, classes: dict[str, int], samples: Sequence[Labelled]) -> list[float] | None:
    given = config.class_weights
    if given is None:
        return None
    if given == "balanced":
        counts = [sum(sample.target == name for sample in samples) for name in classes]
        return [len(samples) / (len(classes) * max(1, count)) for count in counts]
    strange = set(given) - set(classes) if isinstance(given, dict) else set()
    if strange or (not isinstance(given, dict) and len(given) != len(classes)):
        hint = f"a number for each of {', '.join(classes)}"
        raise InputError(f"{given} are not weights of {len(classes)} classes", where="key 'class_weights'", hint=hint)
    return [float(given.get(name, 1.0)) for name in classes] if isinstance(given, dict) else list(given)
