"""The same boxes on many workers: a mesh of ranks, each with its own part of the image.

mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("h", "w"))
tiled = tilegrad.distribute(model, mesh)
x = tilegrad.distributed.part(image, mesh)      # this rank's box alone
loss = tiled(x, part(mask, mesh))               # or a Part, where the output is an image
loss.backward()                                 # gradients as in one process, on every rank
"""

from .join import close as close
from .module import DistributedModule as DistributedModule
from .module import distribute as distribute
from .part import Part as Part
from .part import part as part
from .state import load_state as load_state
from .state import save_state as save_state
from .watch import RankError as RankError
