"""What a call of a module is: where it runs, and which of its images are read from elsewhere."""

from __future__ import annotations

import torch
from torch import nn

from tilegrad.modules.calls import ModuleCall
from tilegrad.torch_private import FakeTensorMode


def on_a_gpu() -> nn.Module:
    net = nn.ReLU()
    with FakeTensorMode():
        net.register_buffer("kernel", torch.empty(2, device="cuda"))
    return net


def test_an_image_on_the_host_of_a_gpu_lies_elsewhere() -> None:
    """A plan does not count it as memory of the GPU; one that was made for an image on the GPU does."""
    net, image = on_a_gpu(), torch.zeros(1, 1, 8, 8)
    host, device = ModuleCall.of(net, (image,), {}), ModuleCall.of(net, (image.to("meta"),), {})
    assert host.device.type == "cuda" and host.away == [0] and device.away == []
    assert host.key != device.key


def test_what_gets_a_gradient_does_not_lie_elsewhere() -> None:
    image = torch.zeros(1, 1, 8, 8, requires_grad=True)
    assert ModuleCall.of(on_a_gpu(), (image,), {}).away == []


def test_numbers_stay_where_they_are() -> None:
    """Lengths of sequences, say, which torch wants on the host: where plain PyTorch fits it gets them as they are."""
    lengths, image = torch.tensor([3, 2]), torch.zeros(1, 1, 8, 8)
    call = ModuleCall.of(on_a_gpu(), (lengths, image), {})
    assert call.away == [1]


def test_on_a_cpu_nothing_lies_on_its_host() -> None:
    image = torch.zeros(1, 1, 8, 8)
    call = ModuleCall.of(nn.Conv2d(1, 2, 3), (image,), {})
    assert call.away == [] and call.whole[0] is image
