"""What goes wrong says so: one kind of error, its cause, the place, the way out, and nothing on the console."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from loops import CLOSE, Net, backward, compare, exact_or_refused, image, once, photo, refused
from torch import Tensor, nn

import tilegrad
from tilegrad.errors import TilegradError


def failing(make: Callable[[], nn.Module], *args: Any, **kwargs: Any) -> TilegradError:
    """The error of a call that plain refuses, too; the module must go on working afterwards."""
    net = make().double()
    with pytest.raises(Exception):  # noqa: B017 plain's own, whatever it is
        net(*args, **kwargs)
    tiled = tilegrad.tile(net, tile=8)
    with pytest.raises(TilegradError) as error:
        tiled(*args, **kwargs)
    assert error.value.__cause__ is not None, "the cause is lost"
    assert isinstance(error.value, ValueError), "what the caller gave is wrong: a ValueError"
    return error.value


def goes_on(tiled: nn.Module, net: nn.Module) -> bool:
    return torch.allclose(tiled(image()), net(image()), rtol=1e-12)


# Wrong inputs


def test_the_wrong_number_of_channels() -> None:
    error = failing(Net, image(1, 3, 16, 16))
    assert "channels" in str(error) and "3" in str(error)


@pytest.mark.parametrize("shape", [(2, 2, 2, 16, 16), (16,)])
def test_the_wrong_rank(shape: tuple[int, ...]) -> None:
    failing(Net, image(*shape))


def test_the_wrong_type() -> None:
    error = failing(Net, image().float())
    assert "number of channels" not in str(error)


def test_a_missing_argument() -> None:
    error = failing(Net)
    assert "x" in str(error) and "number of channels" not in str(error)


def test_an_argument_too_many() -> None:
    error = failing(Net, image(), image())
    assert "number of channels" not in str(error)


def test_an_unknown_name() -> None:
    error = failing(Net, image(), colour="red")
    assert "colour" in str(error) and "number of channels" not in str(error)


@pytest.mark.parametrize("thing", ["a path", None, 3.0, [1, 2], {"image": 1}], ids=str)
def test_no_image_at_all(thing: Any) -> None:
    failing(Net, thing)


def test_sizes_that_do_not_fit_a_skip() -> None:
    class Unet(Net):
        def middle(self, y: Tensor) -> Tensor:
            down = nn.functional.max_pool2d(y, 2)
            return y + nn.functional.interpolate(down, scale_factor=2)

    error = failing(Unet, image(1, 2, 15, 15))
    assert "test_refusals.py" in str(error.where) and "number of channels" not in str(error)


def test_a_wrong_input_after_a_right_one() -> None:
    net = Net().double()
    tiled = tilegrad.tile(net, tile=8)
    once(tiled)
    with pytest.raises(TilegradError):
        tiled(image(1, 3, 16, 16))
    assert goes_on(tiled, net)


# Errors of the model's own


class Mine(Exception):
    """An error of the user's."""


RAISED: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("the mask is empty"),
    "RuntimeError": lambda: RuntimeError("the mask is empty"),
    "KeyError": lambda: KeyError("the mask is empty"),
    "AssertionError": lambda: AssertionError("the mask is empty"),
    "NotImplementedError": lambda: NotImplementedError("the mask is empty"),
    "of the user": lambda: Mine("the mask is empty"),
}


@pytest.mark.parametrize("kind", RAISED)
def test_an_error_of_the_model_is_the_cause(kind: str) -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            raise RAISED[kind]()

    error = failing(Model, image())
    assert "the mask is empty" in str(error) and "number of channels" not in str(error)
    assert type(error.__cause__) is type(RAISED[kind]())
    assert "test_refusals.py" in str(error.where)


def test_an_error_that_comes_only_sometimes() -> None:
    class Model(Net):
        ready = True

        def middle(self, y: Tensor) -> Tensor:
            if not self.ready:
                raise Mine("not ready")
            return y.relu()

    net = Model().double()
    tiled = tilegrad.tile(net, tile=8)
    once(tiled)
    net.ready = False
    with pytest.raises(TilegradError, match="not ready") as error:
        tiled(image())
    assert isinstance(error.value.__cause__, Mine)
    net.ready = True
    assert goes_on(tiled, net)


def test_a_model_without_forward() -> None:
    failing(nn.Module, image())


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_not_wrapped(kind: type[BaseException]) -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            raise kind

    tiled = tilegrad.tile(Model().double(), tile=8)
    with pytest.raises(kind):
        tiled(image())


# At run time


def test_a_second_backward() -> None:
    loss = tilegrad.tile(Net().double(), tile=8)(image()).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(TilegradError, match="second time") as error:
        loss.backward()
    assert isinstance(error.value, RuntimeError)


@pytest.mark.parametrize("what", ["weight", "image", "optimizer"])
def test_what_backward_needs_is_changed(what: str) -> None:
    net = Net().double()
    tiled = tilegrad.tile(net, tile=8)
    given = image().requires_grad_() * 1
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    once(net)
    out = tiled(given)
    with torch.no_grad():
        {"weight": lambda: net.last.weight.mul_(2), "image": lambda: given.mul_(2), "optimizer": optimizer.step}[what]()
    with pytest.raises(TilegradError, match="written to after the forward pass") as error:
        backward(out)
    assert isinstance(error.value, RuntimeError)


def test_second_order_gradients() -> None:
    given = image().requires_grad_()
    out = tilegrad.tile(Net().double(), tile=8)(given)
    with pytest.raises(TilegradError, match="second-order") as error:
        torch.autograd.grad(out.sum(), given, create_graph=True)
    assert isinstance(error.value, RuntimeError)


def test_no_budget_is_small_enough() -> None:
    with pytest.raises(TilegradError, match="nothing fits") as error:
        tilegrad.tile(Net().double(), budget="1KiB")(image())
    assert error.value.hint and not isinstance(error.value, MemoryError)


@pytest.mark.parametrize("options", [{"tile": -1}, {"tile": 8, "mode": "sideways"}, {"budget": "many"}], ids=str)
def test_options_that_make_no_sense_are_value_errors(options: dict[str, Any]) -> None:
    with pytest.raises(TilegradError) as error:
        tilegrad.tile(Net().double(), **options)(image())
    assert isinstance(error.value, ValueError)


# What cannot be tiled

OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "sparse": lambda y: y.to_sparse(),
    "nested": lambda y: torch.nested.nested_tensor([y[0], y[0, :, :3]]),
    "quantised": lambda y: torch.quantize_per_tensor(y.detach().float(), 0.5, 0, torch.qint8).dequantize().double() + y,
    "numpy": lambda y: y.detach().numpy(),
    "a number": lambda y: y.detach().sum().item(),
    "a generator": lambda y: (part for part in (y, y)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", OUTPUTS.values(), ids=OUTPUTS)
def test_outputs_of_other_kinds(make: Callable[[Tensor], Any]) -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Any:
            return make(super().forward(x))

    def loop(model: nn.Module) -> Any:
        out = model(image())
        if isinstance(out, Tensor):
            return out.to_dense().detach() if out.is_sparse else out.detach() if not out.is_nested else out[0].detach()
        return [part.detach() for part in out] if hasattr(out, "send") else out

    exact_or_refused(Model, loop)


def test_a_sparse_input() -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.to_dense())

    exact_or_refused(Model, lambda m: backward(m(image().to_sparse())))


def test_a_refusal_quotes_the_line() -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            return y * y.mean().item()

    error = refused(Model, lambda m: m(image()).detach(), "item")
    assert "test_refusals.py" in str(error.where) and error.hint


# Nothing on the console


def sometimes(act: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            return act(y)

    return lambda: Model().double()


SPILLS: dict[str, Callable[[Tensor], Tensor]] = {
    "fine": lambda y: y.relu(),
    "branch": lambda y: y if y.sum() > 0 else -y,
    "item": lambda y: y * y.amax().item(),
    "mask": lambda y: y + y[y > 0].sum(),
    "raises": lambda y: [][3],
    "shape": lambda y: y + torch.ones(7, dtype=y.dtype),
}


@pytest.mark.parametrize("act", SPILLS.values(), ids=SPILLS)
def test_nothing_is_said_on_the_console(
    act: Callable[[Tensor], Tensor], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    tiled = tilegrad.tile(sometimes(act)(), tile=8)
    with caplog.at_level(logging.WARNING):
        try:
            once(tiled)
        except TilegradError as error:
            assert error.__cause__ is not None or error.where
    out, err = capfd.readouterr()
    assert not out and not err
    assert not [record for record in caplog.records if record.name.startswith("torch")]


def test_a_model_that_prints_is_heard(capsys: pytest.CaptureFixture[str]) -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            print("forward of", tuple(x.shape))
            return super().forward(x)

    compare(Model, once)
    assert "forward of (1, 2, 16, 16)" in capsys.readouterr().out


# The family of errors


def test_errors_are_ours_and_pythons() -> None:
    errors = tilegrad.errors
    for kind in (errors.InputError, errors.ModelError, errors.CaptureError, errors.GridError, errors.FormatError):
        assert issubclass(kind, TilegradError) and issubclass(kind, ValueError)
    assert not issubclass(errors.InputError, RuntimeError | MemoryError)
    assert issubclass(errors.BudgetError, TilegradError)


def test_a_handler_for_memory_errors_does_not_catch_a_typo() -> None:
    tiled = tilegrad.tile(Net().double(), tile=8)
    with pytest.raises(ValueError) as error:
        tiled(image(1, 5, 16, 16))
    assert not isinstance(error.value, RuntimeError | MemoryError)  # the usual retry with a smaller batch


def test_loops_go_on_after_a_refusal() -> None:
    def loop(model: nn.Module) -> Any:
        with suppress(ValueError, RuntimeError):
            model(photo(1, 5, 16, 16))
        return backward(model(photo()))

    compare(lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)).double(), loop, tolerance=CLOSE)
