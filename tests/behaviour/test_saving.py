"""State dicts, checkpoints, copies and pickles of a tiled module."""

from __future__ import annotations

import copy
import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from loops import CLOSE, Net, backward, compare, conv, image, once, original, photo, twice, whole_numbers
from torch import Tensor, nn

import tilegrad


class Normed(Net):
    """With buffers of all kinds, and an extra state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)
        self.register_buffer("scratch", torch.ones(4, 1, 1), persistent=False)
        self.seen = 0

    def middle(self, y: Tensor) -> Tensor:
        self.seen += 1
        return self.norm(y).relu() + self.scratch

    def get_extra_state(self) -> Any:
        return {"seen": self.seen}

    def set_extra_state(self, state: Any) -> None:
        self.seen = state["seen"]


def make_normed() -> nn.Module:
    return Normed().double()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> Tensor:
    optimizer.zero_grad()
    out = backward(model(photo(2, 2, 16, 16, seed=seed)))
    optimizer.step()
    return out


def stored(item: Any, *, weights_only: bool = False) -> Any:
    torch.save(item, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


# State dicts


def test_a_state_dict_is_that_of_the_model() -> None:
    def loop(model: nn.Module) -> Any:
        backward(model(photo(2, 2, 16, 16)))
        state = model.state_dict()
        return (
            list(state),
            state,
            type(state).__name__,
            dict(state._metadata),
            model.state_dict(prefix="net.", keep_vars=True),
        )

    compare(make_normed, loop, tolerance=CLOSE)


def test_extra_state_is_saved_and_loaded() -> None:
    def loop(model: nn.Module) -> Any:
        twice_seen = [backward(model(photo())) for _ in range(2)]
        state = stored(model.state_dict())
        backward(model(photo()))
        model.load_state_dict(state)
        return twice_seen, model.seen, backward(model(photo()))

    compare(make_normed, loop, tolerance=CLOSE)


def test_a_checkpoint_and_going_on() -> None:
    def loop(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for seed in range(2):
            step(model, optimizer, seed)
        saved = stored({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        went_on = [step(model, optimizer, seed) for seed in (2, 3)]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        again = [step(model, optimizer, seed) for seed in (2, 3)]
        assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in zip(went_on, again, strict=True))
        return went_on

    compare(make_normed, loop, tolerance=CLOSE)


def test_from_plain_to_tiled_and_back() -> None:
    def loop(model: nn.Module) -> Any:
        other = make_normed()
        backward(model(photo()))
        other.load_state_dict(model.state_dict())
        with torch.no_grad():
            other.first.weight.mul_(2)
        model.load_state_dict(other.state_dict())
        return backward(model(photo()))

    compare(make_normed, loop, tolerance=CLOSE)


@pytest.mark.parametrize("strict", [True, False])
def test_keys_that_do_not_fit(strict: bool) -> None:
    def loop(model: nn.Module) -> Any:
        state = model.state_dict()
        state["surplus"] = state.pop("first.weight")
        if not strict:
            result = model.load_state_dict(state, strict=False)
            return once(model), result.missing_keys, result.unexpected_keys
        with pytest.raises(RuntimeError) as error:
            model.load_state_dict(state)
        return once(model), str(error.value).splitlines()[1:]

    compare(Net, loop)


def test_shapes_that_do_not_fit() -> None:
    def loop(model: nn.Module) -> Any:
        with pytest.raises(RuntimeError, match="size mismatch for") as error:
            model.load_state_dict({**model.state_dict(), "first.weight": torch.ones(3)})
        return once(model), str(error.value).splitlines()[1:]

    compare(Net, loop)


def test_parameters_are_replaced_by_what_is_loaded() -> None:
    def loop(model: nn.Module) -> Any:
        first = once(model)
        state = {name: nn.Parameter(value * 2) for name, value in model.state_dict().items()}
        model.load_state_dict(state, assign=True)
        return first, once(model), [p is state[n] for n, p in model.named_parameters()]

    compare(Net, loop)


def test_hooks_of_the_state_dict() -> None:
    def make() -> nn.Module:
        net = Net()

        def rename(module: nn.Module, state: Any, prefix: str, meta: Any) -> None:
            for name in list(state):
                state[name.replace("first", "stem")] = state.pop(name)

        def back(module: nn.Module, state: Any, prefix: str, *_: Any) -> None:
            for name in list(state):
                state[name.replace("stem", "first")] = state.pop(name)

        net.register_state_dict_post_hook(rename)
        net.register_load_state_dict_pre_hook(back)
        net.register_load_state_dict_post_hook(lambda module, keys: setattr(module, "loaded", True))
        return net

    def loop(model: nn.Module) -> Any:
        state = model.state_dict()
        first = once(model)
        model.load_state_dict({name: value * 2 for name, value in state.items()})
        return sorted(state), first, once(model), model.loaded

    compare(make, loop)


@pytest.mark.parametrize("late", [True, False], ids=["on the wrapper", "on the model"])
def test_hooks_of_the_state_dict_set_later(late: bool) -> None:
    def loop(model: nn.Module) -> Any:
        at = model if late else original(model)
        at.register_state_dict_post_hook(lambda module, state, prefix, meta: state.update(version=torch.ones(1)))
        return once(model), sorted(model.state_dict()), sorted(original(model).state_dict())

    compare(Net, loop)


def test_a_model_with_its_own_state_dict() -> None:
    class Own(Net):
        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            state = super().state_dict(*args, **kwargs)
            return OrderedDict((name, value) for name, value in state.items() if "last" not in name)

        def load_state_dict(self, state: Any, *args: Any, **kwargs: Any) -> Any:
            return super().load_state_dict(state, strict=False)

    def loop(model: nn.Module) -> Any:
        state = copy.deepcopy(model.state_dict())
        first = once(model)
        model.load_state_dict({name: value * 2 for name, value in state.items()})
        return list(state), first, once(model)

    compare(Own, loop)


def test_a_part_with_its_own_loading() -> None:
    class Old(nn.Conv2d):
        def _load_from_state_dict(self, state: Any, prefix: str, *more: Any) -> None:
            if f"{prefix}kernel" in state:
                state[f"{prefix}weight"] = state.pop(f"{prefix}kernel")
            super()._load_from_state_dict(state, prefix, *more)

    def loop(model: nn.Module) -> Any:
        state = model.state_dict()
        state["0.kernel"] = state.pop("0.weight") * 2
        model.load_state_dict(state)
        return once(model)

    compare(lambda: nn.Sequential(Old(2, 4, 3), conv(4, 2)), loop)


def test_the_best_state_is_kept_in_memory() -> None:
    def loop(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        best, kept = float("inf"), None
        for seed in range(3):
            loss = model(photo(seed=seed)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if float(loss.detach()) < best:
                best, kept = float(loss.detach()), copy.deepcopy(model.state_dict())
        model.load_state_dict(kept)
        return best, model.eval()(photo()).detach()

    compare(make_normed, loop, tolerance=CLOSE)


def test_all_parameters_as_one_vector() -> None:
    def loop(model: nn.Module) -> Any:
        first = once(model)
        vector = nn.utils.parameters_to_vector(model.parameters()).detach() * 2
        nn.utils.vector_to_parameters(vector, model.parameters())
        return first, once(model)

    compare(Net, loop)


def test_a_model_that_is_made_empty_and_loaded() -> None:
    def make() -> nn.Module:
        with torch.device("meta"):
            net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
        net.to_empty(device="cpu")
        return net

    compare(make, twice)


# Copies

COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "saved": stored,
}


@pytest.mark.parametrize("used", [True, False], ids=["after a call", "before any"])
@pytest.mark.parametrize("how", COPIES)
def test_a_copy_goes_its_own_way(how: str, used: bool) -> None:
    def loop(model: nn.Module) -> Any:
        if used:
            backward(model(photo()))
        other = COPIES[how](model)
        with torch.no_grad():
            model.first.weight.zero_()
        model.alpha = 9
        other.zero_grad()
        found = backward(other(photo())), [p.grad for p in other.parameters()], other.seen
        return found, model.seen, hasattr(other, "alpha"), type(other) is type(model)

    compare(make_normed, loop, tolerance=CLOSE)


def test_a_shallow_copy_shares_its_parameters() -> None:
    def loop(model: nn.Module) -> Any:
        once(model)
        other = copy.copy(model)
        found = once(other)
        with torch.no_grad():
            model.first.weight.mul_(2)
        return found, once(other), next(other.parameters()) is next(model.parameters())

    compare(Net, loop)


def test_a_copy_of_the_model_alone() -> None:
    def loop(model: nn.Module) -> Any:
        backward(model(photo()))
        other = copy.deepcopy(original(model))
        return backward(other(photo())), pickle.loads(pickle.dumps(original(model)))(photo()).detach()

    compare(make_normed, loop, tolerance=CLOSE)


def test_a_copy_of_what_forward_left_behind() -> None:
    class Keeps(Net):
        def middle(self, y: Tensor) -> Tensor:
            self.kept = y.detach()
            return y.relu()

    def loop(model: nn.Module) -> Any:
        once(model)
        other = copy.deepcopy(model)
        other(image(seed=3))
        return model.kept, other.kept

    compare(Keeps, loop)


def test_an_ensemble_of_copies() -> None:
    def loop(model: nn.Module) -> Any:
        members = nn.ModuleList([copy.deepcopy(model) for _ in range(3)])
        with torch.no_grad():
            for k, member in enumerate(members):
                member.last.bias.fill_(k)
        out = sum(member(image()) for member in members)
        return backward(out), [p.grad for p in members.parameters()], list(members.state_dict())

    compare(Net, loop)


def test_a_pickled_wrapper_holds_no_plans() -> None:
    tiled = tilegrad.tile(whole_numbers(Net()), tile=8)
    before = len(pickle.dumps(tiled))
    once(tiled)
    tiled.zero_grad()
    assert len(pickle.dumps(tiled)) < before + 1000
