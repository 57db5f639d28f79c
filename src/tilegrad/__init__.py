"""Train and run convolutional networks on images that do not fit in memory."""

from typing import TYPE_CHECKING

from .lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from . import distributed as distributed
    from . import images as images
    from . import nn as nn
    from . import ops as ops
    from .distributed.module import distribute as distribute
    from .images import ImageSource as ImageSource
    from .images import open as open
    from .importers import capture as capture
    from .importers import load as load
    from .importers import load_profile as load_profile
    from .importers import load_rects as load_rects
    from .modules.plan import Plan as Plan
    from .modules.predicted import predict as predict
    from .modules.replayed import Replay as Replay
    from .modules.replayed import replay as replay
    from .modules.tiled import TiledModule as TiledModule
    from .modules.tiled import tile as tile
    from .modules.verification import Verification as Verification
    from .modules.verification import verify as verify
    from .profile import Profile as Profile
    from .recording.record import record as record
    from .report.chrome_trace import save_chrome_trace as save_chrome_trace

__version__ = "0.1.0"

_HOMES = {
    "ImageSource": "images",
    "distribute": "distributed.module",
    "open": "images",
    "capture": "importers",
    "load": "importers",
    "load_profile": "importers",
    "load_rects": "importers",
    "Profile": "profile",
    "predict": "modules.predicted",
    "Replay": "modules.replayed",
    "replay": "modules.replayed",
    "record": "recording.record",
    "save_chrome_trace": "report.chrome_trace",
    "Plan": "modules.plan",
    "TiledModule": "modules.tiled",
    "tile": "modules.tiled",
    "Verification": "modules.verification",
    "verify": "modules.verification",
}
__getattr__, __dir__ = _lazy_names(__name__, _HOMES, packages=("distributed", "images", "nn", "ops"))
