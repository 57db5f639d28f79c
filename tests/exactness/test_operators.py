"""Every operator's samples, trained for a step in every mode: values and gradients against plain torch."""

from __future__ import annotations

import pytest
import torch

import tilegrad
from tilegrad.ops import Sample, registered
from tilegrad.testing import assert_same_step, integer_tensor
from tilegrad.testing.op_suite import Function

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'", "ignore:.*is deprecated", "ignore:reduction:")


def samples() -> dict[str, Sample]:
    found: dict[str, Sample] = {}
    for cls in dict.fromkeys(type(op) for op in registered().values()):
        for at, sample in enumerate(cls.samples()):
            found[f"{cls.__name__}-{at}-{sample.note}"] = sample
    return found


SAMPLES = samples()
CONSTANT = {"ClassLoss-3-weights": (2,), "Norm-1-batch, eval": (1, 2)}  # arguments without a gradient in torch
FORWARD_ONLY = {"Pointwise-19-in place"}  # plain torch cannot go back through relu_ and then add_


@pytest.mark.parametrize("mode", ["stream", "scatter", "gather", "none"])
@pytest.mark.parametrize("label", SAMPLES)
def test_a_sample_in_every_mode(label: str, mode: str) -> None:
    sample = SAMPLES[label]
    inputs = [
        integer_tensor(shape, 0, sample.classes - 1, at).long()
        if at in sample.integer
        else integer_tensor(shape, -4, 4, at)
        for at, shape in enumerate(sample.shapes)
    ]
    module = Function(sample.function)
    if label in FORWARD_ONLY:
        assert torch.equal(tilegrad.tile(module, tile=3, mode=mode)(*inputs), module(*inputs))
        return
    # Another order of summation, in samples with divisions or transcendental functions: 1e-12 of the largest entry.
    constant = CONSTANT.get(label, ())
    assert_same_step(module, inputs, exact=False, tolerance=1e-12, constant=constant, tile=3, mode=mode)
