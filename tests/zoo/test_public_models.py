"""Public models, where their packages are installed: a step equal to plain's, and one with drop rates as shipped.

    pip install -c constraints.txt torchvision timm segmentation-models-pytorch monai einops
    pytest --slow tests/zoo/test_public_models.py -k "timm or smp"

Their warnings are theirs, not errors.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from public_models import MODELS, Model, import_torchvision
from torch import nn
from zoo_steps import Seeded, assert_plains, awake, picture, plain_step, without_drops

from tilegrad.testing import assert_same

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore")]
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


@pytest.fixture(autouse=True)
def _installed(model: Model) -> None:
    if find_spec("torchvision"):
        import_torchvision()  # before the others, which import it too
    pytest.importorskip(model.package)


def made(model: Model) -> nn.Module:
    torch.manual_seed(0)
    return awake(model.make().double().train())


@every_model
def test_tiles_give_plains_step(model: Model) -> None:
    net, x = without_drops(made(model)), picture(model.shape)
    assert_plains(net, x, plain_step(net, x), model.tolerance, tile=model.tile, mode="stream")


@every_model
def test_steps_as_shipped_are_repeated_by_seed(model: Model) -> None:
    net, x = made(model), picture(model.shape)
    steps = Seeded(net, x, tile=model.tile)
    assert_same(steps(7), steps(7))
