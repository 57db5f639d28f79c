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
from types import FrameType, FunctionType
from typing import Any

import torch
import torch.nn.functional as F
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
from .state import HIDDEN, Container, Reach, Slot, Undo, Variable, Write
from .trees import fill, key_of, leaves, take

INNER = "model"  # what the user's module is called inside
LOCK = threading.RLock()  # one capture at a time: it changes the module, and torch.autograd.Function, for a moment
_NO_HOOKS = "a hook on the gradient of a tensor"
_TENSOR: Any = Tensor
_NUMBERS = {
    _TENSOR.item, _TENSOR.tolist, _TENSOR.__bool__, _TENSOR.__int__, _TENSOR.__float__, _TENSOR.__index__,
}  # fmt: skip
_REFUSED: dict[Any, tuple[str, str]] = {
    Tensor.register_hook: (_NO_HOOKS, "return the tensor from forward and hook it there, or an autograd.Function"),
    Tensor.register_post_accumulate_grad_hook: (_NO_HOOKS, "hook the parameter outside of forward"),
    Tensor.retain_grad: ("the gradient of a tensor inside", "return the tensor from forward, and retain it there"),
    Tensor.requires_grad_: ("a change of what needs a gradient", "requires_grad_() outside of forward"),
    _TENSOR.requires_grad.__set__: ("a change of what needs a gradient", "requires_grad_() outside of forward"),
    Tensor.backward: ("backward", "backward outside of forward"),
    _TENSOR.grad.__get__: ("a gradient", "gradients outside of forward"),
    Tensor.numpy: ("a NumPy array of a tensor", "torch operators"),
    torch.autograd.grad: ("a gradient", "gradients outside of the tiled module"),
    torch.autograd.backward: ("backward", "backward outside of forward"),
}


@dataclass
class Traced:
    """What came of it: torch's program, and how the module's result and what it writes are made of its outputs."""

    program: ExportedProgram
    slots: dict[str, Slot]  # parameters, buffers and hidden tensors, by the program's targets
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


@dataclass
class _Session:
    """One trace: what it has seen so far."""

    module: nn.Module
    registered: dict[int, Slot]  # parameters and buffers, which torch.export replaces in their registries
    hidden: dict[int, str]  # tensors that no registry knows -> their name in the holder
    holder: nn.Module
    result: Any = None
    sources: tuple[Any, ...] = ()
    tokens: list[int] = field(default_factory=list)
    seen: list[tuple[weakref.ref[Tensor], str]] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    thread: int = field(default_factory=threading.get_ident)

    def fake(self, item: Any) -> Any:
        """The stand-in of a tensor that the module holds, wherever it was found."""
        if not isinstance(item, Tensor) or isinstance(item, FakeTensor):
            return item
        if id(item) in self.hidden:
            name = self.hidden[id(item)]
            return self.holder._parameters.get(name, self.holder._buffers.get(name))
        return self.registered[id(item)].get() if id(item) in self.registered else item


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
        outer = _Outer(module, session.holder, _watched(_forward_of(module), session, tree, names))
        _tracing = threading.get_ident()
        try:
            with _one_trace(session), _quiet():
                program = torch.export.export(outer, tuple(fakes))
        finally:
            _tracing = None
        _check_kept(session, program)
        return Traced(program, slots, session.result, session.sources, session.writes, session.tokens)


def _forward_of(module: nn.Module) -> Callable[..., Any]:
    """What a call of the module runs, but for its hooks, which the wrapper calls."""
    if type(module).__call__ is not nn.Module.__call__:
        return functools.partial(type(module).__call__, module)
    return module.forward


def forward_line(module: nn.Module) -> str:
    """Where the module's forward is written."""
    code = getattr(type(module).forward, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else type(module).__name__


@contextlib.contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """For running a module's forward pass without its own hooks: afterwards it is as it was."""
    with LOCK, Undo(module), _quiet():
        _drop_hooks(module)
        yield


def _hide(module: nn.Module, reach: Reach) -> tuple[dict[str, Slot], _Session]:
    """Every tensor by the name that the program will have for it. Those without one get a child to be in."""
    slots, registered, stand_ins = {}, dict[int, Slot](), dict[Any, Any]()
    for prefix, part in module.named_modules(remove_duplicate=False):
        for registry in (part._parameters, part._buffers):
            for key, tensor in registry.items():
                if tensor is not None:
                    name = f"{prefix}.{key}" if prefix else key
                    slots[f"{INNER}.{name}"] = registered[id(tensor)] = Slot(registry, key, name)
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
    return slots, _Session(module, registered, hidden, holder)


def _is_bare(tensor: Tensor | None) -> bool:
    """A tensor where torch expects a Parameter."""
    return tensor is not None and not isinstance(tensor, nn.Parameter)


def _drop_hooks(module: nn.Module) -> None:
    """The module without its own hooks: the wrapper calls them."""
    for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        vars(module)[name] = OrderedDict()


def _check_hooks(reach: Reach) -> None:
    everywhere = nn.modules.module
    if everywhere._global_backward_hooks or everywhere._global_backward_pre_hooks:
        what = "a backward hook on all modules, which tiles would not call"
        raise CaptureError(what, where="register_module_full_backward_hook", hint="remove it, or hook parameters")
    for name, part in reach.modules[1:]:
        if part._backward_hooks or part._backward_pre_hooks:
            raise CaptureError(
                f"a backward hook on '{name}', which tiles would not call",
                where=f"{name} ({type(part).__name__})",
                hint="hook the module given to tilegrad.tile, a parameter, or an output",
            )


# -- the forward pass, watched -----------------------------------------------------------------------------------------


def _watched(forward: Callable[..., Any], session: _Session, tree: Any, names: Sequence[str]) -> Callable[..., Any]:
    def run(*given: Tensor) -> tuple[Tensor, ...]:
        args, kwargs = fill(tree, given)
        with Undo(session.module) as undo:
            known = {id(slot.get()): slot for slot in undo.reach.tensors}
            held = (slot.get() for slot in undo.reach.tensors)
            session.seen += [(weakref.ref(t), "an input or parameter") for t in (*given, *held) if _is_fake(t)]
            with _Guard(session):
                found = forward(*args, **kwargs)
            if (what := undo.drawn()) is not None:
                raise _drawn(what, forward, args, kwargs, forward_line(session.module))
            _check_arguments(tree, given, args, kwargs, forward_line(session.module))
            return _collect(found, undo, known, given, session)

    # torch.export reads the names of inputs off it
    plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
    run.__signature__ = inspect.Signature([inspect.Parameter(n, plain) for n in names])  # type: ignore[attr-defined]
    return run


def _is_fake(item: Any) -> bool:
    return isinstance(item, FakeTensor)


def _check_arguments(tree: Any, given: Sequence[Tensor], args: Any, kwargs: Any, line: str) -> None:
    """Are lists and dicts among the arguments as they were?"""
    now: list[Tensor] = list(given)
    if key_of(take((args, kwargs), now)) != key_of(tree) or len(now) > len(given):
        what = "the model writes into a list, dict or object among its arguments"
        raise CaptureError(what, where=line, hint="return what it makes")


def _collect(
    found: Any, undo: Undo, known: Mapping[int, Slot], given: Sequence[Tensor], session: _Session
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
        if not _is_fake(tensor):
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


class _Guard(TorchFunctionMode):
    """Sees every call of torch that the user's forward pass makes."""

    def __init__(self, session: _Session):
        super().__init__()
        self.session, self.inference = session, torch.is_inference_mode_enabled()
        self.batches: Tensor | None = None  # how many a norm layer has seen that averages over all of them

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _REFUSED:
            what, hint = _REFUSED[func]
            name = getattr(func, "__name__", "").strip("_")
            raise CaptureError(f"the model uses {what} in forward ('{name}')", where=user_line(), hint=hint)
        if torch.is_inference_mode_enabled() != self.inference:
            what = "torch.inference_mode inside of forward"
            raise CaptureError(what, where=user_line(), hint="torch.no_grad inside, or inference_mode around the call")
        args, kwargs = pytree.tree_map(self.session.fake, (args, kwargs or {}))
        _check_outside(args, kwargs)
        if func in _NUMBERS and _is_fake(args[0]) and args[0].constant is None:
            return self._number(func, args[0])
        if func is F.batch_norm and self.batches is not None:
            batches, self.batches = self.batches, None
            return _average_norm(batches, *args, **kwargs)
        if func == _TENSOR.data.__get__:
            return args[0].detach()
        if func == _TENSOR.data.__set__:
            return _put(*args)
        found = func(*args, **kwargs)
        for item in pytree.tree_leaves(found):
            if _is_fake(item):
                self.session.seen.append((weakref.ref(item), user_line()))
        return found

    def _number(self, func: Any, tensor: Tensor) -> Any:
        line = user_line()
        if func is _TENSOR.__float__ and _counts_batches():
            self.batches = tensor
            return 1.0
        if func is _TENSOR.__bool__:
            raise CaptureError(
                "the model branches on the content of a tensor",
                where=line,
                hint="torch.where instead of if, or keep this part outside the wrapped module",
            )
        raise CaptureError(
            f"the model takes a number out of a tensor ('{func.__name__.strip('_')}')",
            where=line,
            hint="keep it a tensor: no .item(), .tolist() or float() in forward",
        )


def _put(tensor: Tensor, data: Tensor) -> None:
    """`tensor.data = data`."""
    if tensor.shape != data.shape or tensor.dtype != data.dtype:
        what = "the model gives a tensor a content of another type (.data = …)"
        raise CaptureError(what, where=user_line(), hint="a new tensor")
    with torch.no_grad():
        tensor.copy_(data)


def _counts_batches() -> bool:
    """Is it torch's own norm layer that asks, to weigh the newest batch?"""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and is_ours(frame.f_code.co_filename):
        if frame.f_code is nn.modules.batchnorm._BatchNorm.forward.__code__:
            return True
        frame = frame.f_back
    return False


def _average_norm(
    batches: Tensor,
    x: Tensor, mean: Tensor, var: Tensor, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: Any = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Batch norm whose running statistics are averages over all batches: torch wants their share as a number."""
    assert training
    found = F.batch_norm(x, None, None, weight, bias, True, 0.0, eps)
    with torch.no_grad():
        wide = x.to(mean.dtype)
        over = [d for d in range(x.dim()) if d != 1]
        share = 1.0 / batches.to(mean.dtype)
        mean.add_((wide.mean(over) - mean) * share)
        var.add_((wide.var(over) - var) * share)
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


class _Redirect:
    """The code that `Function.apply` has while tracing. It is put into the very function, since people keep
    `reverse = Reverse.apply` under names of their own."""

    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        __class__  # type: ignore[name-defined] # noqa: B018 - the original has this free variable, so must this
        return _tilegrad_opaque(cls, args, kwargs)  # type: ignore[name-defined] # noqa: F821 - put there below


@contextlib.contextmanager
def _one_trace(session: _Session) -> Iterator[None]:
    """While tracing, `Function.apply` makes opaque calls."""
    apply: Any = Function.apply
    function, code = apply.__func__, apply.__func__.__code__
    original = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)

    def opaque(cls: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if threading.get_ident() != session.thread or not torch.compiler.is_exporting():
            return original(cls, *args, **kwargs)
        if cls is CheckpointFunction:  # plans recompute by themselves
            return args[0](*args[2:])
        return _opaque(session, cls, args, functools.partial(original, cls))

    function.__globals__["_tilegrad_opaque"] = opaque
    function.__code__ = _Redirect.apply.__code__
    try:
        yield
    finally:
        function.__code__ = code
        del function.__globals__["_tilegrad_opaque"]


def _opaque(session: _Session, cls: type[Function], args: tuple[Any, ...], apply: Callable[..., Any]) -> Any:
    leaves, spec = pytree.tree_flatten(args)
    leaves = [session.fake(leaf) for leaf in leaves]
    positions = tuple(k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
    tensors = [leaves[k] for k in positions]
    found, results, random = _rehearse(apply, leaves, positions, spec)
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
            blanks[k] = made.requires_grad_().clone() if needs else made
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


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch's own logs and warnings about the trace are not the user's business: errors are explained."""

    def drop(record: logging.LogRecord) -> bool:
        return not record.name.startswith("torch")

    loggers = [x for x in logging.root.manager.loggerDict.values() if isinstance(x, logging.Logger)]
    handlers = [h for each in (logging.root, *loggers) for h in each.handlers]
    handlers += [logging.lastResort] if logging.lastResort else []
    for handler in handlers:
        handler.addFilter(drop)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"torch\b")
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(drop)
