"""Every operator's samples, trained for a step in every mode: values and gradients against plain torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tilegrad
from tilegrad.ops import Call, Op, Place, Sample, op, registered, registry
from tilegrad.ops.base import Reads, imagelike
from tilegrad.region import Slide
from tilegrad.testing import assert_same_step, check_operator, integer_tensor
from tilegrad.testing.op_suite import SampleFunction

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'", "ignore:.*is deprecated", "ignore:reduction:")


def samples() -> dict[str, Sample]:
    found: dict[str, Sample] = {}
    for cls in dict.fromkeys(type(each) for each in registered().values()):
        for at, sample in enumerate(cls.samples()):
            found[f"{cls.__name__}-{at}-{sample.note}"] = sample
    return found


SAMPLES = samples()
CONSTANT = {"ClassLoss-3-weights": (2,), "Norm-1-batch, eval": (1, 2)}  # arguments without a gradient in torch
FORWARD_ONLY = {"Pointwise-19-in place"}  # plain torch cannot go back through relu_ and then add_


@pytest.mark.parametrize("mode", ["stream", "scatter", "gather"])
@pytest.mark.parametrize("label", SAMPLES)
def test_a_sample_in_every_mode(label: str, mode: str) -> None:
    sample = SAMPLES[label]
    inputs = [
        integer_tensor(shape, 0, sample.classes - 1, at).long()
        if at in sample.integer
        else integer_tensor(shape, -4, 4, at)
        for at, shape in enumerate(sample.shapes)
    ]
    module = SampleFunction(sample.function)
    if label in FORWARD_ONLY:
        assert torch.equal(tilegrad.tile(module, tile=3, mode=mode)(*inputs), module(*inputs))
        return
    # Another order of summation, in samples with divisions or transcendental functions: 1e-12 of the largest entry.
    constant = CONSTANT.get(label, ())
    assert_same_step(module, inputs, exact=False, tolerance=1e-12, constant=constant, tile=3, mode=mode)


@pytest.mark.parametrize("name", ["var", "std"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_spread_of_an_image_in_half_precision(name: str, dtype: torch.dtype) -> None:
    module = SampleFunction(lambda x: getattr(x * 2, name)((2, 3)))
    image = integer_tensor((2, 3, 9, 7), -4, 4).to(dtype)
    found, wanted = tilegrad.tile(module, tile=3)(image), module(image)
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted, rtol=2**-7, atol=0)  # the last bit of bfloat16


# An operator of one's own, with the suite that is shipped for it


@torch.library.custom_op("tilegrad_tests::edges", mutates_args=())
def edges(x: Tensor) -> Tensor:
    """Each pixel against its neighbours to the left and right, with zeros beyond the border."""
    padded = F.pad(x, (1, 1))
    return 2 * x - padded[..., :-2] - padded[..., 2:]


edges.register_fake(torch.empty_like)
edges.register_autograd(lambda _, grad: edges(grad))  # it is its own transpose


class Edges(Op):
    reach = 1  # pixels to either side

    def __init__(self, spatial: int = 0):
        super().__init__(2)

    def reads(self, call: Call) -> Reads:
        columns = Slide(1 + 2 * self.reach, 1, self.reach, self.reach)
        return (imagelike(call, (Slide(), columns)),)

    def run(self, call: Call, tiles: Any, place: Place) -> Tensor:
        x = F.pad(tiles[0], place.pad(call)[-1])
        return edges(x).narrow(-1, self.reach, place.out[-1].size)


class NearSighted(Edges):
    """Asks for less than it reads."""

    reach = 0


@pytest.fixture
def own_operators() -> Iterator[None]:
    before = dict(registry._OPS)
    yield
    registry._OPS.clear()
    registry._OPS.update(before)


@pytest.mark.usefixtures("own_operators")
def test_an_operator_of_ones_own() -> None:
    op("edges")(Edges)
    check_operator(edges, (2, 2, 9, 8), exact=True)
    check_operator(lambda x, w: F.conv2d(edges(x).relu(), w), (1, 2, 9, 8), (3, 2, 3, 3), exact=True)


@pytest.mark.usefixtures("own_operators")
def test_a_rule_that_asks_for_too_little_is_found() -> None:
    op("edges")(NearSighted)
    with pytest.raises(AssertionError, match=r"edges.*(not as in the whole|reads more than it asks for)"):
        check_operator(edges, (2, 2, 9, 8))


def test_without_a_rule_it_runs_whole() -> None:
    check_operator(lambda x: F.max_pool2d(edges(x * 2), 2), (1, 2, 9, 8), exact=True)
