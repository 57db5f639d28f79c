"""MONAI: its U-Net and its Dice loss, on whole slides with a mask of textures. `python with_monai.py`"""

import torch
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from slides import Slide, make_set

import tilegrad

torch.manual_seed(0)
net = UNet(spatial_dims=2, in_channels=3, out_channels=3, channels=(8, 16, 32), strides=(2, 2))
tiled = tilegrad.tile(net, budget="40MiB")
dice, optimizer = DiceCELoss(to_onehot_y=True, softmax=True), torch.optim.AdamW(tiled.parameters(), lr=0.01)
for seed, (path, _) in enumerate(make_set("slides", size=512, count=4)):
    mask = torch.from_numpy(Slide(512, seed).mask())[None, None].long()
    loss = dice(tiled(tilegrad.open(path, scale=1 / 255)), mask)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{path}: loss {loss.item():.6f}")
