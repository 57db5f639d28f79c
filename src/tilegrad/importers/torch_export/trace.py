"""Run `torch.export` on a user's module, and miss nothing that it would drop.

torch.export follows the tensors. What else a forward pass does is watched here while it is traced:

- an `autograd.Function` of the user's becomes one opaque call (`ops/function.py`) instead of being traced through;
- tensors that no registry knows (in lists, closures, globals) are captured like parameters and buffers;
- containers that the forward pass writes to become outputs, which are written again after every call;
- hooks on tensors, gradients taken inside, generators that are not torch's are refused, by line;
- a tensor that is still held by anyone after the trace has gone somewhere we cannot follow: refused, too.

Afterwards the module is as it was (rule M3 of `state`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import logging
import sys
import threading
import warnings
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import Function
from torch.export import ExportedProgram
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.checkpoint import CheckpointFunction

from ...errors import CaptureError
from ...ops.function import Invocation, Output, remember
from .explain import is_ours
from .state import HIDDEN, Reach, Slot, Undo, Variable, Write

LOCK = threading.RLock()  # one capture at a time: it changes the module, and torch.autograd.Function, for a moment
_NO_HOOKS = "a hook on the gradient of a tensor"
_TENSOR: Any = Tensor
_REFUSED: dict[Any, tuple[str, str]] = {
    Tensor.register_hook: (_NO_HOOKS, "return the tensor from forward and hook it there, or an autograd.Function"),
    Tensor.register_post_accumulate_grad_hook: (_NO_HOOKS, "hook the parameter outside of forward"),
    Tensor.retain_grad: ("the gradient of a tensor inside", "return the tensor from forward, and retain it there"),
    Tensor.requires_grad_: ("a change of what needs a gradient", "requires_grad_() outside of forward"),
    _TENSOR.requires_grad.__set__: ("a change of what needs a gradient", "requires_grad_() outside of forward"),
    Tensor.backward: ("backward", "backward outside of forward"),
    _TENSOR.data.__set__: ("a new content by .data", "copy_() under torch.no_grad()"),
    _TENSOR.grad.__get__: ("a gradient", "gradients outside of forward"),
    Tensor.numpy: ("a NumPy array of a tensor", "torch operators"),
    torch.autograd.grad: ("a gradient", "gradients outside of the tiled module"),
    torch.autograd.backward: ("backward", "backward outside of forward"),
}


@dataclass
class Traced:
    """What came of it: torch's program, whose outputs are the module's and then those for `writes`."""

    program: ExportedProgram
    slots: dict[str, Slot]  # parameters, buffers and hidden tensors, by the program's targets
    writes: list[Write]
    tokens: list[int]


@dataclass
class _Session:
    """One trace: what it has seen so far."""

    module: nn.Module
    hidden: dict[int, str]  # tensors that no registry knows -> their name in the holder
    holder: nn.Module
    tokens: list[int] = field(default_factory=list)
    seen: list[tuple[weakref.ref[Tensor], str]] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    thread: int = field(default_factory=threading.get_ident)

    def fake(self, item: Any) -> Any:
        """A hidden tensor's stand-in."""
        if isinstance(item, Tensor) and not isinstance(item, FakeTensor) and id(item) in self.hidden:
            name = self.hidden[id(item)]
            return self.holder._parameters.get(name, self.holder._buffers.get(name))
        return item


def trace(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Traced:
    """Capture `module` on fake inputs."""
    with LOCK, Undo(module) as undo:
        _check_hooks(undo.reach)
        slots, session = _hide(module, undo.reach)
        _strip(module, session)
        with _one_trace(session), _quiet():
            program = torch.export.export(module, tuple(args), dict(kwargs))
        _check_kept(session, program)
        return Traced(program, slots, session.writes, session.tokens)


@contextlib.contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """For running a module's forward pass without its own hooks: afterwards it is as it was."""
    with LOCK, Undo(module), _quiet():
        _drop_hooks(module)
        yield


def _hide(module: nn.Module, reach: Reach) -> tuple[dict[str, Slot], _Session]:
    """Every tensor by the name that the program will have for it. Those without one get a child to be in."""
    slots, registered, stand_ins = {}, set[int](), dict[Any, Any]()
    for prefix, part in module.named_modules(remove_duplicate=False):
        for registry in (part._parameters, part._buffers):
            for key, tensor in registry.items():
                if tensor is not None:
                    name = f"{prefix}.{key}" if prefix else key
                    slots[name] = Slot(registry, key, name)
                    registered.add(id(tensor))
            stand_ins |= {(id(part), key): (part, key, t) for key, t in part._parameters.items() if _is_bare(t)}
    for part, key, tensor in stand_ins.values():  # put there by functional_call
        part._parameters[key] = nn.Parameter(tensor.detach(), tensor.requires_grad)
    holder, hidden = nn.Module(), dict[int, str]()
    for slot in reach.tensors:
        tensor = slot.get()
        if id(tensor) in registered or id(tensor) in hidden:
            continue
        name = hidden[id(tensor)] = f"tensor{len(hidden)}"
        if tensor.requires_grad:
            holder._parameters[name] = nn.Parameter(tensor.detach())
        else:
            holder._buffers[name] = tensor
        slots[f"{HIDDEN}.{name}"] = slot
    if hidden:
        module._modules[HIDDEN] = holder
    return slots, _Session(module, hidden, holder)


def _is_bare(tensor: Tensor | None) -> bool:
    """A tensor where torch expects a Parameter."""
    return tensor is not None and not isinstance(tensor, nn.Parameter)


def _strip(module: nn.Module, session: _Session) -> None:
    """The module without its own hooks, which the wrapper calls, and with a forward that is watched."""
    _drop_hooks(module)
    vars(module)["forward"] = _watched(module.forward, session)


def _drop_hooks(module: nn.Module) -> None:
    for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        vars(module)[name] = OrderedDict()


def _check_hooks(reach: Reach) -> None:
    for name, part in reach.modules[1:]:
        if part._backward_hooks or part._backward_pre_hooks:
            raise CaptureError(
                f"a backward hook on '{name}', which tiles would not call",
                where=f"{name} ({type(part).__name__})",
                hint="hook the module given to tilegrad.tile, a parameter, or an output",
            )


# -- the forward pass, watched -----------------------------------------------------------------------------------------


def _watched(forward: Callable[..., Any], session: _Session) -> Callable[..., Any]:
    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        with Undo(session.module) as undo:
            known = {id(slot.get()): slot for slot in undo.reach.tensors}
            for given in (*pytree.tree_leaves((args, kwargs)), *(slot.get() for slot in undo.reach.tensors)):
                if isinstance(given, FakeTensor):
                    session.seen.append((weakref.ref(given), "an input or parameter"))
            with _Guard(session):
                found = forward(*args, **kwargs)
            if (what := undo.drawn()) is not None:
                raise _drawn(what, forward, args, kwargs)
            extras = _collect(undo, known, session)
        return found, extras

    with contextlib.suppress(ValueError):  # torch.export reads the names of inputs off it
        run.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    return run


def _collect(undo: Undo, known: Mapping[int, Slot], session: _Session) -> tuple[Tensor, ...]:
    """The tensors that the forward pass has written into containers, and how to write them there again."""
    extras: list[Tensor] = []

    def entry(item: Any) -> Any:
        if isinstance(item, nn.Module | nn.Parameter) and id(item) not in known and _is_new(item, undo.reach):
            raise CaptureError(
                f"forward makes a layer or parameter ({type(item).__name__})",
                where=type(session.module).__name__,
                hint="make it in __init__, or call the model once on a small input before tilegrad.tile",
            )
        if not isinstance(item, FakeTensor):
            return item
        if id(item) in known:
            return known[id(item)]
        extras.append(item)
        return _Extra(len(extras) - 1)

    for container in undo.changed():
        if isinstance(container, Variable):
            made = pytree.tree_map(entry, container.get())
            session.writes.append(Write(container, _Fill(made, None)))
            continue
        live = container.live
        if isinstance(live, dict):
            before = container.content
            changed = {k: v for k, v in live.items() if k not in before or before[k] is not v}
            gone = tuple(k for k in before if k not in live)
            session.writes.append(Write(container, _Fill(pytree.tree_map(entry, changed), gone)))
        else:
            session.writes.append(Write(container, _Fill(pytree.tree_map(entry, list(live)), None)))
    return tuple(extras)


def _is_new(item: Any, reach: Reach) -> bool:
    return all(item is not part for _, part in reach.modules)


@dataclass(frozen=True, slots=True)
class _Extra:
    """A tensor among the outputs that are written back."""

    index: int


@dataclass(frozen=True)
class _Fill:
    """The content of a container after a call: all of a list, the changed entries of a dict."""

    made: Any
    gone: tuple[Any, ...] | None

    def __call__(self, live: Any, tensors: Sequence[Tensor]) -> Any:
        def put(item: Any) -> Any:
            if isinstance(item, _Extra):
                return tensors[item.index]
            return item.get() if isinstance(item, Slot) else item

        found = pytree.tree_map(put, self.made, is_leaf=lambda x: isinstance(x, _Extra | Slot))
        if self.gone is None:
            return found
        return {k: v for k, v in live.items() if k not in self.gone} | found


class _Guard(TorchFunctionMode):
    """Sees every call of torch that the user's forward pass makes."""

    def __init__(self, session: _Session):
        super().__init__()
        self.session = session

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _REFUSED:
            what, hint = _REFUSED[func]
            raise CaptureError(f"the model uses {what} in forward", where=user_line(), hint=hint)
        args, kwargs = pytree.tree_map(self.session.fake, (args, kwargs or {}))
        _check_outside(args, kwargs)
        if func == _TENSOR.data.__get__:
            return args[0].detach()
        found = func(*args, **kwargs)
        for item in pytree.tree_leaves(found):
            if isinstance(item, FakeTensor):
                self.session.seen.append((weakref.ref(item), user_line()))
        return found


def _check_outside(args: Any, kwargs: Any) -> None:
    for item in pytree.tree_leaves((args, kwargs)):
        if isinstance(item, Tensor) and not isinstance(item, FakeTensor) and item.requires_grad:
            raise CaptureError(
                "the model uses a tensor that needs a gradient, and that the module does not hold",
                where=user_line(),
                hint="make it an attribute of the module, or pass it as an input",
            )


def _check_kept(session: _Session, program: ExportedProgram) -> None:
    """Is a tensor of the trace held by anyone but the program?"""
    held = {id(node.meta.get("val")) for node in program.graph.nodes}
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            held |= {id(node.meta.get("val")) for node in part.graph.nodes}
    alive = [(tensor, line) for ref, line in session.seen if (tensor := ref()) is not None]
    session.seen.clear()
    suspects = {id(t): (t, line) for t, line in alive if sys.getrefcount(t) > 4 + (id(t) in held)}
    del alive
    for tensor, line in suspects.values():
        holders = [h for h in gc.get_referrers(tensor) if _is_users(h)]
        if holders:
            raise CaptureError(
                f"a tensor of the forward pass is kept outside of the module, in a {type(holders[0]).__name__}",
                where=line,
                hint="return it, or keep it in an attribute of the module",
            )


def _is_users(holder: Any) -> bool:
    """A collection that is not part of torch's own bookkeeping."""
    if not isinstance(holder, dict | list | set | deque):
        return False
    owners = [type(owner).__module__.partition(".")[0] for owner in gc.get_referrers(holder)]
    return "torch" not in owners and not (isinstance(holder, dict) and "val" in holder)


# -- autograd.Function -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _one_trace(session: _Session) -> Iterator[None]:
    """While tracing, `Function.apply` makes opaque calls."""
    original = Function.__dict__["apply"]

    def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != session.thread or not torch.compiler.is_exporting():
            return original.__get__(None, cls)(*args, **kwargs)
        if cls is CheckpointFunction:  # plans recompute by themselves
            return args[0](*args[2:])
        return _opaque(session, cls, args, original)

    setattr(Function, "apply", classmethod(apply))  # noqa: B010 - mypy minds methods
    try:
        yield
    finally:
        setattr(Function, "apply", original)  # noqa: B010


def _opaque(session: _Session, cls: type[Function], args: tuple[Any, ...], original: Any) -> Any:
    leaves, spec = pytree.tree_flatten(args)
    leaves = [session.fake(leaf) for leaf in leaves]
    positions = tuple(k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
    tensors = [leaves[k] for k in positions]
    found, results, random = _rehearse(original.__get__(None, cls), leaves, positions, spec)
    rest = tuple(None if k in positions else leaf for k, leaf in enumerate(leaves))
    written = tuple(o.argument for o in results if o.argument is not None)
    whole = Invocation(cls, rest, positions, spec, written, tuple(results))
    call = torch.ops.tilegrad.random_custom_function if random else torch.ops.tilegrad.custom_function

    def emit(invocation: Invocation) -> Tensor:
        session.tokens.append(remember(invocation))
        made: Tensor = call(tensors, invocation.name, session.tokens[-1])
        return made

    smooth = iter(whole.unpack(emit(whole)) if any(o.differentiable for o in results) else ())
    made: list[Tensor] = []
    for k, each in enumerate(results):
        tensor = next(smooth) if each.differentiable else emit(replace(whole, pick=k)).detach()
        if each.argument is not None:  # the function wrote to its input and returned it
            tensor = tensors[each.argument].copy_(tensor)
        made.append(tensor)
    outputs = iter(made)
    filled = [
        next(outputs) if isinstance(item, Tensor) else item
        for item in (found if isinstance(found, tuple) else (found,))
    ]
    return tuple(filled) if isinstance(found, tuple) else filled[0]


def _rehearse(
    apply: Callable[..., Any], leaves: Sequence[Any], positions: Sequence[int], spec: Any
) -> tuple[Any, list[Output], bool]:
    """Run a function on tensors without data, apart from the trace: what it gives, and whether it draws."""
    blanks, draws = list(leaves), _Draws()  # type: ignore[no-untyped-call]
    with (
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),
        torch.enable_grad(),
        FakeTensorMode(allow_non_fake_inputs=True),
        draws,
    ):
        for k in positions:
            t = leaves[k]
            made = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
            needs = made.is_floating_point() or made.is_complex()
            # not a leaf, so that it may be written to
            blanks[k] = made.requires_grad_().view_as(made) if needs else made
        found = apply(*pytree.tree_unflatten(blanks, spec))
    inputs = {id(blanks[k]): at for at, k in enumerate(positions)}
    several = found if isinstance(found, tuple) else (found,)
    results = [
        Output(tuple(t.shape), t.dtype, t.requires_grad, inputs.get(id(t))) for t in several if isinstance(t, Tensor)
    ]
    return found, results, draws.any


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether any operator draws random numbers."""

    any = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.any |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


# -- where, and quietly ------------------------------------------------------------------------------------------------


def user_line() -> str:
    """The innermost line that is not torch's or ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_ours(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _drawn(what: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> CaptureError:
    """Which line drew: found by running once more with an eye on every call."""
    lines: list[str] = []
    inside = ("random", "numpy.random", "numpy.random.mtrand", "numpy.random._generator")

    def look(frame: FrameType, event: str, arg: Any) -> None:
        drawn = event == "c_call" and getattr(type(getattr(arg, "__self__", None)), "__module__", "") in inside
        if drawn and not lines:
            lines.append(user_line())

    sys.setprofile(look)
    try:
        forward(*args, **kwargs)
    finally:
        sys.setprofile(None)
    return CaptureError(
        f"the model draws from {what} in forward, which a captured graph would never do again",
        where=lines[0] if lines else "",
        hint="torch.rand and torch.where, or draw outside and pass it as an input",
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch's own logs and warnings about the trace are not the user's business: errors are explained."""

    def drop(record: logging.LogRecord) -> bool:
        return not record.name.startswith("torch")

    handlers = [h for name in ("", "torch") for h in logging.getLogger(name).handlers]
    for handler in handlers:
        handler.addFilter(drop)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"torch\b")
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(drop)
