"""Where an operator of a recording belongs: the module that runs it and the phase of training.

Global module hooks keep a stack of modules. Autograd numbers its nodes in the order in which forward makes them, so the
numbers at which modules are entered and left tell, in backward, whose node runs. The counter is one per thread, and so
is everything here: on CUDA, backward runs in a thread of its own, in which recomputed modules may make nodes too.
"""

from __future__ import annotations

from bisect import bisect_right
from threading import get_ident
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ..ir import Phase
from ..torch_private import backward_node, backward_task, next_number
from .memory import GRADIENT, WEIGHT, Ledger

FORWARD, BACKWARD, UPDATE = range(3)  # numbers: see record_memory
PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE)
_NO_NUMBER = 2**63  # nodes that add to a leaf have the largest number there is


class _Call(NamedTuple):
    module: int  # its id: a recording keeps no module alive
    path: str
    task: int  # the backward pass in which it is called


class _Update(NamedTuple):
    task: int
    depth: int  # of modules
    closure: bool


class _Thread:
    """Modules that run in one thread, and the first node number of each stretch between entering and leaving."""

    def __init__(self) -> None:
        self.stack: list[_Call] = []
        self.numbers: list[int] = []
        self.paths: list[str] = []

    def border(self) -> None:
        self.numbers.append(next_number())
        self.paths.append(self.stack[-1].path if self.stack else "")

    def path_of(self, number: int) -> str:
        at = bisect_right(self.numbers, number) - 1
        return self.paths[at] if at >= 0 else ""


class Scope:
    """Hooks while a recording runs, and the answer to `where()`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._home = get_ident()
        self._threads: dict[int, _Thread] = {self._home: _Thread()}
        self._names: dict[int, str] = {}  # of modules, by id
        self._update: _Update | None = None
        self._outer: int | None = None  # the backward pass that was called from outside of backward
        self._handles: list[Any] = []

    def open(self) -> None:
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(self._begin_update),
            register_optimizer_step_post_hook(self._end_update),
        ]

    def close(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def where(self) -> tuple[str, int, int]:
        """Module, phase and thread."""
        ident, task = get_ident(), backward_task()
        thread = self._threads.get(ident)
        stack = thread.stack if thread is not None else ()
        update = self._update
        if update is not None and update.task == task and update.depth == len(stack):
            return "", UPDATE, ident
        if task < 0:
            self._outer = None
            return stack[-1].path if stack else "", FORWARD, ident
        if self._outer is None:
            self._outer = task
        if stack and stack[-1].task == task:  # called in this very pass: a module that runs again
            return stack[-1].path, BACKWARD, ident
        # A pass inside a pass goes over what was made in the thread of backward itself.
        return self._of_node(self._home if task == self._outer else ident), BACKWARD, ident

    def _of_node(self, ident: int) -> str:
        node, thread = backward_node(), self._threads.get(ident)
        if node is None or thread is None:
            return ""
        number = node._sequence_nr()
        if number < _NO_NUMBER:
            return thread.path_of(number)
        leaf = getattr(node, "variable", None)
        return self._ledger.owner_of(leaf) if isinstance(leaf, Tensor) else ""

    # -- modules -------------------------------------------------------------------------------------------------------

    def _enter(self, module: nn.Module, args: Any) -> None:
        ident, task = get_ident(), backward_task()
        if ident != self._home and task < 0:
            return  # another thread's work
        thread = self._threads.setdefault(ident, _Thread())
        stack = thread.stack
        if not stack and (task < 0 or id(module) not in self._names):
            self._name_parts(module)
            if task < 0 and self._update is not None and not self._update.closure:
                self._update = None  # the optimizer failed: torch calls no hook then
        path = self._names.get(id(module))
        if path is None:
            path = stack[-1].path if stack else ""
        stack.append(_Call(id(module), path, task))
        thread.border()

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        thread = self._threads.get(get_ident())
        if thread is None:
            return
        for at in range(len(thread.stack) - 1, -1, -1):
            if thread.stack[at].module == id(module):
                del thread.stack[at:]
                thread.border()
                return

    def _name_parts(self, root: nn.Module) -> None:
        self._names.update((id(part), name) for name, part in root.named_modules())
        for name, parameter in root.named_parameters():
            self._know(parameter, name, name.rpartition(".")[0])
        for name, buffer in root.named_buffers():
            self._ledger.know(buffer, WEIGHT, name, name.rpartition(".")[0])

    def _know(self, parameter: Tensor, name: str = "", owner: str | None = None) -> None:
        self._ledger.know(parameter, WEIGHT, name, owner)
        if parameter.grad is not None:
            self._ledger.know(parameter.grad, GRADIENT)

    # -- optimizers ----------------------------------------------------------------------------------------------------

    def _begin_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        ident, task = get_ident(), backward_task()
        if ident != self._home and task < 0:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._know(parameter)
        thread = self._threads.get(ident)
        closure = len(args) > 1 or kwargs.get("closure") is not None
        self._update = _Update(task, len(thread.stack) if thread is not None else 0, closure)

    def _end_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if get_ident() == self._home or backward_task() >= 0:
            self._update = None
