"""Train and run convolutional networks on images that do not fit in memory."""

from .importers import capture as capture
from .importers import load as load
from .replay import Replay as Replay
from .replay import replay as replay
from .tiled import Plan as Plan
from .tiled import TiledModule as TiledModule
from .tiled import tile as tile
from .verify import Verification as Verification
from .verify import verify as verify

__version__ = "0.1.0"
