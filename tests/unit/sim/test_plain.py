"""Plain's bytes are found by tensors that know of no device, and by others where a module asks for one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tilegrad.sim.plain import plain_bytes


class Choosy(nn.Module):
    """Refuses tensors that lie nowhere, in one way or another."""

    def __init__(self, refusal: type[Exception]):
        super().__init__()
        self.conv, self.refusal = nn.Conv2d(3, 4, 3, padding=1), refusal

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type not in ("cpu", "cuda"):
            raise self.refusal(f"what is {x.device}?")
        found: Tensor = self.conv(x).relu()
        return found


@pytest.mark.parametrize("refusal", [AssertionError, AttributeError, KeyError, RuntimeError, ValueError])
def test_a_module_that_asks_for_a_device(refusal: type[Exception]) -> None:
    net = Choosy(refusal)
    wanted = plain_bytes(nn.Sequential(net.conv, nn.ReLU()), (torch.zeros(1, 3, 16, 16),), {}, train=True)
    assert plain_bytes(net, (torch.zeros(1, 3, 16, 16),), {}, train=True) == wanted > 2 * 4 * 16 * 16 * 4


def test_what_is_really_wrong_shows() -> None:
    with pytest.raises(RuntimeError, match="channels"):
        plain_bytes(nn.Conv2d(3, 4, 3), (torch.zeros(1, 5, 16, 16),), {}, train=True)
