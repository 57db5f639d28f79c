"""Loaded once by the server that ranks are forked from: what is imported here, and the first export, cost seconds."""

from __future__ import annotations

import torch
from torch import nn

from tilegrad.importers import export_module

torch.set_num_threads(1)
export_module(nn.Conv2d(1, 1, 3), (torch.empty(1, 1, 4, 4, device="meta"),))
