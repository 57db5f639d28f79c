"""What a profile says: times, memory, and what could be better."""

from .analysis import SCHEMA as SCHEMA
from .analysis import Analysis as Analysis
from .analysis import analyze as analyze
