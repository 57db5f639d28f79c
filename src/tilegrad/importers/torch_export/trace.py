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
import sys
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ...errors import CaptureError
from ...torch_private import backward_hooks_everywhere, compiled_asks, know_compiler
from .explain import forward_line, quiet, refused, user_line
from .guard import Guard
from .opaque import opaque_functions
from .reach import HIDDEN, Container, Reach, TensorSlot, Variable
from .session import Session, is_fake
from .state import Undo, Write
from .trees import fill, key_of, leaves, take

INNER = "model"  # what the user's module is called inside
LOCK = threading.RLock()  # one capture at a time: it changes the module, and torch.autograd.Function, for a moment


@dataclass
class Traced:
    """What came of it: torch's program, and how the module's result and what it writes are made of its outputs."""

    program: ExportedProgram
    slots: dict[str, TensorSlot]  # parameters, buffers and hidden tensors, by the program's targets
    result: Any  # a tree (see `trees`) over `sources`
    sources: tuple[Any, ...]  # `Returned`, `Given`, a `Slot`, or a tensor that is always the same
    writes: list[Write]  # whose trees are over `sources` as well
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Returned:
    """An output of the program, by its number."""

    index: int


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor among the arguments, by its number."""

    index: int


@contextlib.contextmanager
def _as_usual(session: Session) -> Iterator[None]:
    """Models that ask torch whether they are compiled or exported hear that they are not: they run as usual. A function
    that was compiled hears the truth, and runs as it was written."""
    know_compiler()
    asked = ("is_compiling", "is_exporting", "is_dynamo_compiling")
    before = {name: getattr(torch.compiler, name) for name in asked}
    here = session.thread
    session.inside = True

    def said(answer: Callable[[], bool]) -> Callable[[], bool]:
        return lambda: (threading.get_ident() != here or compiled_asks(sys._getframe(1))) and answer()

    try:
        for name, answer in before.items():
            setattr(torch.compiler, name, said(answer))
        yield
    finally:
        session.inside = False
        for name, answer in before.items():
            setattr(torch.compiler, name, answer)


def tracing_here() -> bool:
    """Does this thread capture a module right now?"""
    return _tracing == threading.get_ident()


def tracing_elsewhere() -> bool:
    """Does another thread capture a module right now? torch says so to all of them."""
    return _tracing is not None and _tracing != threading.get_ident()


_tracing: int | None = None


class _Outer(nn.Module):
    """What torch.export is given: the module, and beside it the tensors that no registry knows."""

    def __init__(self, module: nn.Module, hidden: nn.Module, run: Callable[..., Any]):
        super().__init__()
        self._modules |= {INNER: module, HIDDEN: hidden}
        self.__dict__["forward"] = run


def trace(module: nn.Module, tree: Any, fakes: Sequence[Tensor], names: Sequence[str]) -> Traced:
    """Capture `module` for arguments `tree` (args and keywords) over these tensors, which are called `names`."""
    global _tracing
    with LOCK, Undo(module) as undo:
        _check_hooks(undo.reach)
        slots, session = _hide(module, undo.reach)
        _drop_hooks(module)
        _disarm(undo.reach)
        outer = _Outer(module, session.holder, _watched(_forward_of(module), session, tree, names))
        _tracing = threading.get_ident()
        try:
            with opaque_functions(session), quiet():
                program = torch.export.export(outer, tuple(fakes))
        finally:
            _tracing = None
        _check_kept(session, program)
        return Traced(program, slots, session.result, session.sources, session.writes, session.tokens)


class _Untouchable:
    """Stands for an iterator: a capture would take one step of it, and then never again."""

    def __init__(self, name: str):
        self.name = name

    def __iter__(self) -> _Untouchable:
        return self

    def __next__(self) -> Any:
        what = f"the model takes the next of the iterator '{self.name}' in forward, which a captured graph would not"
        raise refused(what, "count in a buffer, or pass it as an input")


def _disarm(reach: Reach) -> None:
    """Iterators may not be moved, and caches of functions may not keep what is traced."""
    for slot in reach.iterators:
        slot.set(_Untouchable(slot.name))
    for variable in reach.variables:
        if isinstance(variable.content, functools._lru_cache_wrapper) and not isinstance(variable.holder, type):
            replace(variable, content=variable.content.__wrapped__).restore()


def _forward_of(module: nn.Module) -> Callable[..., Any]:
    """What a call of the module runs, but for its hooks, which the wrapper calls."""
    if type(module).__call__ is not nn.Module.__call__:
        return functools.partial(type(module).__call__, module)
    return module.forward


@contextlib.contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """For running a module's forward pass without its own hooks: afterwards it is as it was."""
    with LOCK, Undo(module), quiet():
        _drop_hooks(module)
        yield


def _hide(module: nn.Module, reach: Reach) -> tuple[dict[str, TensorSlot], Session]:
    """Every tensor by the name that the program will have for it. Those without one get a child to be in."""
    slots, registered, stand_ins = {}, dict[int, TensorSlot](), dict[Any, Any]()
    for prefix, part in module.named_modules(remove_duplicate=False):
        for registry in (part._parameters, part._buffers):
            for key, tensor in registry.items():
                if tensor is not None:
                    name = f"{prefix}.{key}" if prefix else key
                    slots[f"{INNER}.{name}"] = registered[id(tensor)] = TensorSlot(registry, key, name)
        for key, tensor in part._parameters.items():
            if tensor is not None and not isinstance(tensor, nn.Parameter):
                stand_ins[id(part), key] = part, key, tensor
    for part, key, tensor in stand_ins.values():  # bare tensors, put there by functional_call
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
    return slots, Session(module, registered, hidden, holder)


def _drop_hooks(module: nn.Module) -> None:
    """The module without its own hooks: the wrapper calls them."""
    for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        vars(module)[name] = OrderedDict()


def _check_hooks(reach: Reach) -> None:
    line = forward_line(reach.modules[0][1])
    if backward_hooks_everywhere():
        what = "a backward hook on all modules, which tiles would not call"
        raise CaptureError(what, where=line, hint="remove it, or hook parameters")
    scripted = [name for name, part in reach.modules if isinstance(part, torch.jit.ScriptModule)]
    scripted += [v.name for v in reach.variables if isinstance(v.content, torch.jit.ScriptFunction)]
    if scripted:
        what = f"'{scripted[0]}' is scripted (torch.jit), and cannot be traced"
        raise CaptureError(what, where=line, hint="the module or function that was scripted")
    for name, part in reach.modules[1:]:
        if part._backward_hooks or part._backward_pre_hooks:
            raise CaptureError(
                f"a backward hook on '{name}', which tiles would not call",
                where=f"{name} ({type(part).__name__})",
                hint="hook the module given to tilegrad.tile, a parameter, or an output",
            )


# -- the forward pass, watched -----------------------------------------------------------------------------------------


def _watched(forward: Callable[..., Any], session: Session, tree: Any, names: Sequence[str]) -> Callable[..., Any]:
    def run(*given: Tensor) -> tuple[Tensor, ...]:
        args, kwargs = fill(tree, given)
        with Undo(session.module) as undo:
            known = {id(slot.get()): slot for slot in undo.reach.tensors}
            held = (slot.get() for slot in undo.reach.tensors)
            session.seen += [(weakref.ref(t), "an input or parameter") for t in (*given, *held) if is_fake(t)]
            with Guard(session), _as_usual(session):
                found = forward(*args, **kwargs)
            if (what := undo.drawn()) is not None:
                raise _drawn(what, forward, args, kwargs, forward_line(session.module))
            _check_arguments(tree, given, args, kwargs, forward_line(session.module))
            return _collect(found, undo, known, given, session)

    # torch.export reads the names of inputs off it
    plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
    run.__signature__ = inspect.Signature([inspect.Parameter(n, plain) for n in names])  # type: ignore[attr-defined]
    return run


def _check_arguments(tree: Any, given: Sequence[Tensor], args: Any, kwargs: Any, line: str) -> None:
    """Are lists and dicts among the arguments as they were?"""
    now: list[Tensor] = list(given)
    if key_of(take((args, kwargs), now)) != key_of(tree) or len(now) > len(given):
        what = "the model writes into a list, dict or object among its arguments"
        raise CaptureError(what, where=line, hint="return what it makes")


def _collect(
    found: Any, undo: Undo, known: Mapping[int, TensorSlot], given: Sequence[Tensor], session: Session
) -> tuple[Tensor, ...]:
    """The outputs of the program: what the module returns, and what it has written into containers."""
    tensors: list[Tensor] = []
    session.result = take(found, tensors)
    _refuse_unseen(session.result, forward_line(session.module))
    for container in undo.changed():
        live: Any = container.live if isinstance(container, Container) else None
        gone: tuple[Any, ...] | None = None
        content: Any = container.get() if isinstance(container, Variable) else list(live)
        if isinstance(live, dict):
            content = {k: v for k, v in live.items() if k not in container.content or container.content[k] is not v}
            gone = tuple(k for k in container.content if k not in live)
        tree = take(content, tensors)
        _refuse_new(tree, undo.reach, session.module)
        session.writes.append(Write(container, _Fill(tree, gone)))
    outputs: list[Tensor] = []
    places = {id(t): Given(at) for at, t in enumerate(given)}

    def source(tensor: Tensor) -> Any:
        if id(tensor) in known or id(tensor) in places:
            return known.get(id(tensor)) or places[id(tensor)]
        if not is_fake(tensor):
            return tensor
        if isinstance(tensor, nn.Parameter):
            raise _made("parameter", session.module)
        outputs.append(tensor)
        return Returned(len(outputs) - 1)

    session.sources = tuple(map(source, tensors))
    return tuple(outputs)


def _refuse_new(tree: Any, reach: Reach, module: nn.Module) -> None:
    for item in leaves(tree):
        if isinstance(item, nn.Module) and all(item is not part for _, part in reach.modules):
            raise _made(type(item).__name__, module)


def _made(what: str, module: nn.Module) -> CaptureError:
    hint = "make it in __init__, or call the model once on a small input before tilegrad.tile"
    return CaptureError(f"forward makes a layer or parameter ({what})", where=forward_line(module), hint=hint)


def _refuse_unseen(tree: Any, line: str) -> None:
    """What is returned must be all there: a generator would run later, on nothing."""
    for item in leaves(tree):
        if isinstance(item, Iterator):
            what = f"the model returns a {type(item).__name__}"
            raise CaptureError(what, where=line, hint="return a list or a tuple")


@dataclass(frozen=True)
class _Fill:
    """The content of a container after a call: all of a list, the changed entries of a dict."""

    tree: Any
    gone: tuple[Any, ...] | None

    def __call__(self, live: Any, values: Sequence[Any]) -> Any:
        found = fill(self.tree, values)
        if self.gone is None:
            return found
        return {k: v for k, v in live.items() if k not in self.gone} | found


def _check_kept(session: Session, program: ExportedProgram) -> None:
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


def _drawn(what: str, forward: Callable[..., Any], args: Any, kwargs: Any, line: str) -> CaptureError:
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
        f"the model draws from {what} in forward, which a captured graph would not do again",
        where=lines[0] if lines else line,
        hint="torch.rand and torch.where, or draw outside and pass it as an input",
    )
