"""Functions with a backward of their own, as people write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Reverse(Function):
    """Gradient reversal."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * grad, None


class Rounded(Function):
    """Straight through: rounds, and lets the gradient pass as if it had not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x / 2).round()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Sign(Function):
    """Binary activation: the gradient passes where the input is small."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 9)


class SignApart(Function):
    """The same, with a context of its own."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 9)


class Slowed(Function):
    """Gradient scaling."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.scale, None


class Clipped(Function):
    """The gradient is clipped, element by element: not linear in it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.clamp(-3, 3)


class Normed(Function):
    """The gradient is divided by its largest entry: it needs the whole of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad - grad.amax()


class Centred(Function):
    """Forward and backward look at the whole image."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        top = x.amax((2, 3), keepdim=True)
        ctx.save_for_backward(x == top)
        return x - top

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (at,) = ctx.saved_tensors
        return grad - at * grad.sum((2, 3), keepdim=True)


class SavesOutput(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clamp(min=0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return grad * (y > 0) + y


class Shifted(Function):
    """Moves the image by two rows, and its gradient back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.roll(2, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.roll(-2, 2)


class Unhappy(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise ArithmeticError("my backward stumbles")


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "reversal": lambda y: Reverse.apply(y, 2.0),
    "straight through": Rounded.apply,
    "sign": Sign.apply,
    "sign with setup_context": SignApart.apply,
    "scaling": lambda y: Slowed.apply(y, 0.5),
    "clipping": Clipped.apply,
    "normalising the gradient": Normed.apply,
    "over the whole image": Centred.apply,
    "saving its output": SavesOutput.apply,
    "shifting": Shifted.apply,
}
