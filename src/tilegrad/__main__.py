"""`python -m tilegrad`: the command `tilegrad`."""

import sys

from .cli import main

sys.exit(main())
