"""Which values to keep from one backward node to the next: a training graph as integers, and searches over it."""
