"""Run a schedule with torch: islands of nodes on boxes, carried halos, gradients carried back."""

from .engine import Engine as Engine
from .engine import Session as Session
from .null import Prediction as Prediction
from .null import plain_bytes as plain_bytes
from .null import predict as predict
from .peak import PeakBytes as PeakBytes
