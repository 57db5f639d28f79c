"""`tilegrad.record`: what ran in a block of code, when, and in which memory.

    with tilegrad.record() as rec:
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    rec.profile      # operators and blocks of memory: a `Profile`
    rec.peak_bytes   # as `PeakBytes` counts

Rules:

    Rule P1  what first appears as a result is born in the recording and is `owned`; what first appears as an argument
             was there before: alive from tick 0, not `owned`, not part of `peak_bytes`
    Rule P2  a block dies with its storage. Views and writes in place make no block
    Rule P3  every operator begins a tick. Results are there from the tick of their operator on; what died since the
             operator before is not there in it
    Rule P4  kinds. Parameters and buffers of modules that are called, and parameters of optimizers that step: weight.
             There before: gradient if it is the `.grad` of such a parameter, input if first read in forward, else
             unknown. Born: activation in forward, gradient in backward, unknown in an update (state or scratch, which
             cannot be told)
    Rule P5  phases. Update is inside an optimizer's step, backward is inside autograd's engine, forward is all else
    Rule P6  what is run again in backward (checkpoints, tiles) is backward's, as that is when its time and memory are
             spent. Where it is run to be differentiated it has the attribute "recompute" and makes activations; a
             backward pass with `create_graph=True` looks the same, and what is run again under no_grad does not
    Rule P7  an operator's module is the innermost one that runs, named as in `named_modules` of the outermost; in
             backward it is the module whose forward made autograd's node. The outermost is "", and so is a module that
             is not known; then, if the operator reads parameters of one module only, or what was made of them, it is
             that module (tiles run operators without their modules)
    Rule P8  values are named after their blocks: "t17", or as a parameter is called. A view has the name of its memory
    Rule P9  a view moves no bytes. Flops are those of convolutions, matrix products and attention; None elsewhere

Limits. Only this thread and the backward passes that it starts are seen, not DataLoader workers or other threads.
Scratch inside a kernel is not seen: on CUDA, `torch.cuda.max_memory_allocated` is at least the sum of the blocks, each
rounded up to 512 bytes. It is more by what kernels take for a moment (cuDNN, cuBLAS), and by up to 1 MiB for each block
of over 1 MiB, which the allocator may leave uncut. A storage counts as large as it was when first met, and what torch
fills before an operator sees it (`torch.tensor`, `from_numpy`) counts as there before. Sparse tensors have operators
but no blocks; meta and fake tensors have neither; a tensor subclass that wraps others is seen from outside, without
memory. Under any dispatch mode, and so here, torch runs compiled functions uncompiled, and refuses those with
`fullgraph=True`. After an exception that is no `Exception`, such as an interrupt, modules that it left are taken for
running still. Times include the bookkeeping of recordings and modes around this one. A device span begins when the
device gets to the operator, so where it waits for the host, it includes the launch; host and device clocks are brought
together once, at the first operator on the device. A recording costs 15 to 20 microseconds per operator,
about half of it torch's own for any mode, and a quarter of a KB: small operators suffer most.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import Any

from ..errors import InputError
from ..profile import Profile
from .build import build_profile, find_peaks
from .device import DeviceClock
from .memory import Ledger
from .mode import RecordMode
from .scope import Scope


def record(name: str = "recorded", *, device: str | None = None) -> Recorder:
    """Record the operators and the memory of a `with` block.

    name: of the profile. device: the one whose peak is `peak_bytes` ("cpu", "cuda:0"); by default the one with the
    highest peak among those that are not the CPU, else the CPU.
    """
    return Recorder(name, device)


class Recorder:
    """One recording; use it once. After the block, also after one that failed, it has what ran."""

    def __init__(self, name: str, device: str | None) -> None:
        self.name = name
        self._device = device
        self._mode: RecordMode | None = None
        self._scope: Scope | None = None
        self._done = False

    def __enter__(self) -> Recorder:
        if self._mode is not None:
            state = "has ended" if self._done else "is running"
            raise InputError(f"recording '{self.name}' {state} and cannot be entered", hint="tilegrad.record() again")
        import_module("torch._dynamo")  # a mode's first operator would, in seconds that are not the step's
        ledger = Ledger()
        self._scope = Scope(ledger)
        self._mode = RecordMode(ledger, self._scope, DeviceClock())
        self._scope.open()
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        assert self._mode is not None and self._scope is not None
        self._scope.close()
        self._mode.__exit__(*error)  # type: ignore[no-untyped-call]
        self._done = True
        try:
            self._mode.devices.close()  # waits: the clock ends when the devices do
        finally:
            self._mode.ledger.close()

    @cached_property
    def profile(self) -> Profile:
        return build_profile(self.name, self._ended())

    @cached_property
    def peaks(self) -> dict[str, int]:
        """The most bytes alive at once on every device, beyond what was alive before."""
        return {device: peak for device, (peak, _) in find_peaks(self._ended().ledger).items()}

    @property
    def peak_bytes(self) -> int:
        """The peak of one device: see `record`."""
        if self._device is not None:
            if self._device not in self.peaks:
                seen = ", ".join(self.peaks) or "no device"
                raise InputError(f"nothing was recorded on '{self._device}'", hint=f"one that was: {seen}")
            return self.peaks[self._device]
        others = [peak for device, peak in self.peaks.items() if device != "cpu"]
        return max(others) if others else self.peaks.get("cpu", 0)

    def _ended(self) -> RecordMode:
        if self._mode is None or not self._done:
            raise InputError(f"recording '{self.name}' has not ended", hint="read it after the with block")
        return self._mode
