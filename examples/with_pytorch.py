"""Your own loop: one line makes the model fit, one opens a slide of which boxes are read. `python with_pytorch.py`"""

import torch
from slides import make_set
from torch.nn import functional as F

import tilegrad
from tilegrad.models import resnet18

torch.manual_seed(0)
tiled = tilegrad.tile(resnet18(classes=2, width=0.25), budget="24MiB")  # your model
optimizer = torch.optim.SGD(tiled.parameters(), lr=0.01)
for path, label in make_set("slides", size=512, count=4):  # your slides
    loss = F.cross_entropy(tiled(tilegrad.open(path, scale=1 / 255)), torch.tensor([label]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{path}: loss {loss.item():.6f}")
