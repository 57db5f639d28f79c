"""Run a schedule with torch: islands of nodes on boxes, carried halos, gradients carried back."""

from .engine import Engine as Engine
from .engine import Session as Session
