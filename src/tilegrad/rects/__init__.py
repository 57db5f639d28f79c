"""A training step that is split over workers: graphs whose values say which box a worker reads and writes."""

from .check import check_rects as check_rects
from .export import format_rect_json as format_rect_json
from .kinds import KINDS as KINDS
from .system import split_step as split_step
from .system import training_step as training_step
from .totals import count_kinds as count_kinds
from .totals import total as total
from .traffic import Share as Share
from .traffic import imbalance as imbalance
from .traffic import shares as shares
