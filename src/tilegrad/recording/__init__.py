"""`tilegrad.record`: what ran in a block of code, when, and in which memory."""
