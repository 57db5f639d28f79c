"""When Python looks for garbage that holds itself in circles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """Not meanwhile. Where many small things are made that are never in circles, looking for such takes a tenth of the
    time and more, for it walks over all that torch has loaded."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
