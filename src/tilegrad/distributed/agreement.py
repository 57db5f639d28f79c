"""What ranks must have in common, looked at in every call, so that none goes its own way unnoticed.

Rule A1  At the start parameters and buffers are those of the first rank, or where they differ it is an error.
Rule A2  Every call begins with one exchange of a few bytes: what is called, with what shapes, in which modes, what
         every input that all ranks share contains, and which image each part was cut from. Of tensors on a GPU the
         content is told with the next call, so that nobody waits for it.
Rule A4  What ranks have computed outside, each for itself, is told by its outline, which rounding does not change:
         inputs that all share, and, in the call after it, the gradients of outputs that all share.
Rule A3  How often parameters and buffers were written to is told too: a rank that has skipped a step, or made one more,
         is noticed in the next call. Where the numbers differ, the values decide; they are compared besides in calls
         1, 2, 4, 8, and so on, which finds ranks that drift apart for another reason.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..errors import InputError, TilegradError
from ..region import Box
from .cut_weights import local_of
from .digest import differ, digest, outline
from .group import Group
from .part import Part

WAYS = ("broadcast", "check", "off")
_CONTENT = "the content of inputs that they share"
_OUTLINES = {  # rule A4: what is told, and what makes it the same
    "an input that each has computed": "the same weights, and the same seed before anything random, on every rank",
    "the gradient of an output that they share": "the same loss, labels, weights and seeds outside of the module",
}


@dataclass
class Agreement:
    """Of the ranks of a mesh on one module. `way`: how it begins, or "off": only what would stop a call is compared."""

    group: Group
    way: str
    cut: Mapping[str, Box]  # parameters of which ranks have different boxes
    calls: int = 0
    versions: list[int] = field(default_factory=list)  # of parameters and buffers, in the last call
    late: tuple[Tensor, Any] | None = None  # what the inputs of the last call contained, on its way from a GPU
    gradients: list[Tensor] = field(default_factory=list)  # since the last call: outlines

    @property
    def on(self) -> bool:
        return self.way != "off" and self.group.mesh.count > 1

    # -- values --------------------------------------------------------------------------------------------------------

    def start(self, module: nn.Module) -> None:
        """Rule A1."""
        if not self.on:
            return
        kinds = {name: f"{tuple(t.shape)} {t.dtype}" for name, t in tensors_of(module).items()}
        if not kinds:
            return
        if not self.group.alike("the module", repr(kinds)):
            words = {"the number of parameters and buffers": len(kinds), **kinds}
            compare(self.group, _told(self.group, "the module", words))
        if different := self._different(module):
            if self.way == "check":
                raise self._apart(different, 'agree="broadcast", or the same seed on every rank')
            with torch.no_grad():
                for name in different:
                    self._broadcast(tensors_of(module)[name])
        self.versions = _versions(module)

    def _broadcast(self, tensor: Tensor) -> None:
        group, ranks = self.group.among(frozenset(self.group.mesh.axes))
        sent = tensor.detach().contiguous()
        with self.group.watch.during("the start", ranks):
            dist.broadcast(sent, self.group.mesh.ranks[0], group)
        tensor.copy_(sent)

    def _different(self, module: nn.Module) -> dict[str, list[int | None]]:
        """The tensors that are not the same on all ranks that have them: for each, the number of every rank. What
        others have sharded (`fully_shard`) is theirs to look after."""
        own = {name: t for name, t in tensors_of(module).items() if not t.is_meta}
        tensors = {name: local_of(t) for name, t in own.items() if self.cut or not isinstance(t, DTensor)}
        mine = {f"{name} {self.cut.get(name, '')}".strip(): digest(t) for name, t in tensors.items()}
        numbers = dict(zip(mine, torch.stack(list(mine.values())).tolist(), strict=True)) if mine else {}
        every = _told(self.group, "the values", numbers)
        keys = dict.fromkeys(k for said in every for k in said)
        found = {key: [said.get(key) for said in every] for key in keys}
        return {key: said for key, said in found.items() if len({n for n in said if n is not None}) > 1}

    def _apart(self, different: Mapping[str, Sequence[Any]], hint: str) -> InputError:
        name, said = next(iter(different.items()))
        ranks = self.group.mesh.ranks
        odd = [rank for rank, n in zip(ranks, said, strict=True) if n not in (None, said[0])]
        what = f"the ranks have different values in {len(different)} parameters and buffers, such as '{name}'"
        where = f"rank {', '.join(map(str, odd))} against rank {ranks[0]}, call {self.calls}"
        return InputError(what, where=where, hint=hint)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def call(self, module: nn.Module, words: dict[str, Any], flat: Sequence[Any], failure: str, new: bool) -> bool:
        """Rules A2 and A3. `words`: what must be alike to go on at all, `failure`: why this rank cannot, `new`: it has
        no plan for such a call yet. Is it so for any rank?"""
        words, shared = {"failure": failure, **words}, [0] * len(self.group.mesh.axes)
        steps, outlines = list[int](), [0.0] * 2 * len(_OUTLINES)
        if self.on and not failure:
            words[_CONTENT], shared, outlines = self._content(flat)
            before, self.versions = self.versions, _versions(module)
            steps = [now - then for now, then in zip_longest(self.versions, before, fillvalue=0)]
        self.calls += 1
        alike, same_boxes, some_new, apart = self._look(repr((words, steps)), new, shared, outlines)
        if not alike:
            every = _told(self.group, "the inputs", {**words, "steps": steps})
            self._raise_failure(every)
            compare(self.group, [{k: v for k, v in said.items() if k != "steps"} for said in every])
        if not same_boxes:
            raise InputError(f"the ranks disagree on {_CONTENT}", hint="the same on every rank that has the same box")
        for what in apart:
            raise InputError(f"the ranks disagree on {what}", hint=_OUTLINES[what])
        if not alike or (steps and self.calls & (self.calls - 1) == 0):
            self._compare_values(module)
        return some_new

    def _look(
        self, text: str, new: bool, shared: Sequence[int], outlines: Sequence[float]
    ) -> tuple[bool, bool, bool, list[str]]:
        """Do all ranks say the same, have those that differ along one axis only the same numbers for it, is the call
        new to anyone, and whose outlines are not alike?"""
        if self.group.mesh.count == 1:
            return True, True, new, []
        axes = range(len(shared))
        form = f"16s?{len(shared)}q{len(outlines)}d"
        said = struct.pack(form, hashlib.blake2b(text.encode(), digest_size=16).digest(), new, *shared, *outlines)
        mine = torch.frombuffer(bytearray(said), dtype=torch.uint8).to(self.group.device)
        every = self.group.gather("the inputs", mine, frozenset(self.group.mesh.axes))
        read = (struct.unpack(form, bytes(each.cpu().numpy())) for each in every)
        found = dict(zip(self.group.mesh.coords(), read, strict=True))
        texts, news, *_ = (set(column) for column in zip(*found.values(), strict=True))
        same = all(each[2 + k] == found[(*c[:k], 0, *c[k + 1 :])][2 + k] for c, each in found.items() for k in axes)
        first, *others = (each[2 + len(shared) :] for each in found.values())
        pairs = {what: slice(2 * k, 2 * k + 2) for k, what in enumerate(_OUTLINES)}
        apart = [what for what, at in pairs.items() if any(differ(first[at], other[at]) for other in others)]
        return len(texts) == 1, same, any(news), apart

    def _raise_failure(self, every: Sequence[Mapping[str, Any]]) -> None:
        for rank, said in zip(self.group.mesh.ranks, every, strict=True):
            if said["failure"]:
                raise InputError(f"rank {rank} has no input: {said['failure']}")

    def _compare_values(self, module: nn.Module) -> None:
        if different := self._different(module):
            hint = "optimizer.step() and load_state_dict on every rank, or on none"
            raise self._apart(different, hint)

    def _content(self, flat: Sequence[Any]) -> tuple[list[Any], list[int], list[float]]:
        """What tells the inputs from others: of those that all ranks share, and for every axis of those that are not
        cut along it; and outlines (rule A4)."""
        names = [item.stamp for item in flat if isinstance(item, Part) and isinstance(item.stamp, str)]
        every = [digest(item) for item in flat if isinstance(item, Tensor) and item.is_leaf]
        every += [item.stamp for item in flat if isinstance(item, Part) and isinstance(item.stamp, Tensor)]
        zero = torch.zeros((), dtype=torch.int64, device=self.group.device)
        parts = [(item, digest(item.to_local())) for item in flat if isinstance(item, Part) and self._shares(item)]
        for axis in self.group.mesh.axes:
            every.append(sum((number for item, number in parts if axis not in item.dims), zero))
        made = [outline(item) for item in flat if isinstance(item, Tensor) and not item.is_leaf]
        every += [*self._outlined(made), *self._outlined(self.gradients)]
        self.gradients = []
        found = torch.stack([number.to(self.group.device) for number in every])
        if found.device.type == "cuda":
            before, self.late = self.late, _leaving(found)
            found = torch.zeros_like(found, device="cpu") if before is None else _arrived(before)
        outlines = found[-2 * len(_OUTLINES) :].view(torch.float64).tolist()
        numbers, axes = found[: -2 * len(_OUTLINES)].tolist(), len(self.group.mesh.axes)
        return [*names, *numbers[:-axes]], numbers[-axes:], outlines

    def _outlined(self, every: Sequence[Tensor]) -> list[Tensor]:
        """One outline for all, as integers: the later ones count more, so that none makes up for another."""
        zero = torch.zeros(2, dtype=torch.float64, device=self.group.device)
        total = sum(((k + 1) * each.to(self.group.device) for k, each in enumerate(every)), zero)
        return list(total.view(torch.int64))

    def went_back(self, gradients: Sequence[Tensor]) -> None:
        """Of outputs that all ranks have: told in the next call."""
        if self.on:
            self.gradients += map(outline, gradients)

    def _shares(self, item: Part) -> bool:
        """Have other ranks the same box, as the caller gave it? What was computed may differ in its last bits."""
        return not item.made and any(axis not in item.dims for axis in self.group.mesh.axes)


def _leaving(found: Tensor) -> tuple[Tensor, Any]:
    """A copy on the host, and what to wait for before it is read."""
    copy = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
    copy.copy_(found, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return copy, event


def _arrived(leaving: tuple[Tensor, Any]) -> Tensor:
    leaving[1].synchronize()
    return leaving[0]


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers that have something in them."""
    found = {}
    for path, each in module.named_modules():
        for name, tensor in (*each._parameters.items(), *each._buffers.items()):
            if tensor is not None and not nn.parameter.is_lazy(tensor) and tensor.numel():
                found[f"{path}.{name}" if path else name] = tensor
    return found


def _versions(module: nn.Module) -> list[int]:
    """How often each parameter and buffer was written to. In every call, and so without a detour."""
    found, left = list[int](), [module]
    while left:
        each = left.pop()
        for held in (each._parameters, each._buffers):
            found += [t._version for t in held.values() if t is not None and not t.is_inference()] if held else ()
        left += [child for child in each._modules.values() if child is not None] if each._modules else ()
    return found


def _told(group: Group, what: str, words: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(text) for text in group.tell(what, json.dumps(words))]


def compare(group: Group, answers: Sequence[dict[str, Any]]) -> None:
    """Raise where ranks say different things."""
    for key in answers[0]:
        told = [json.dumps(answer.get(key)) for answer in answers]
        if len(set(told)) > 1:
            each = "; ".join(f"rank {r}: {t[:120]}" for r, t in zip(group.mesh.ranks, told, strict=True))
            raise InputError(f"the ranks disagree on {key}", where=each, hint="the same on every rank")


def say(error: Exception) -> str:
    return error.what if isinstance(error, TilegradError) else f"{type(error).__name__}: {error}"
