"""Graph profiles of MegEngine: operators with host and device times, footprints, variables and their memory."""

from .dump import sniff_megengine as sniff_megengine
from .profile import load_megengine as load_megengine
