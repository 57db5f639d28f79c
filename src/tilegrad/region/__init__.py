"""Integers only: intervals, boxes, windows and covers. Nothing here knows about tensors."""

from .box import Box as Box
from .cover import covers_once as covers_once
from .cover import cuts_of_count as cuts_of_count
from .cover import cuts_of_size as cuts_of_size
from .cover import tiles as tiles
from .interval import EMPTY as EMPTY
from .interval import Interval as Interval
from .interval import overlapping_pairs as overlapping_pairs
from .track import Ends as Ends
from .track import Track as Track
from .track import made_from as made_from
from .track import read_all as read_all
from .window import POINT as POINT
from .window import Adaptive as Adaptive
from .window import Chain as Chain
from .window import Crop as Crop
from .window import Mirror as Mirror
from .window import Repeat as Repeat
from .window import Replicate as Replicate
from .window import Resize as Resize
from .window import Slide as Slide
from .window import Spread as Spread
from .window import Whole as Whole
from .window import Window as Window
