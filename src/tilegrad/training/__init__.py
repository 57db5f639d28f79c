"""`tilegrad train`: from images on disk to a trained network, in a memory budget."""

from .config import TrainingConfig as TrainingConfig
from .config import keys as keys
from .config import load_config as load_config
from .config import make_config as make_config
from .config import parse_value as parse_value
from .trainer import Stopped as Stopped
from .trainer import Trainer as Trainer
