"""Accelerate: prepare the tiled model as any other. Paths go through the loader, slides are opened in the step."""

import torch
from accelerate import Accelerator
from slides import make_set
from torch.nn import functional as F

import tilegrad
from tilegrad.models import resnet18

torch.manual_seed(0)
accelerator = Accelerator()
tiled = tilegrad.tile(resnet18(classes=2, width=0.25), budget="24MiB")
loader = torch.utils.data.DataLoader(make_set("slides", size=512, count=4))
optimizer = torch.optim.SGD(tiled.parameters(), lr=0.01)
tiled, optimizer, loader = accelerator.prepare(tiled, optimizer, loader)
for (path,), label in loader:
    loss = F.cross_entropy(tiled(tilegrad.open(path, scale=1 / 255)), label)
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    print(f"{path}: loss {loss.item():.6f}")
