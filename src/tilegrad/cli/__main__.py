"""`python -m tilegrad.cli`."""

import sys

from . import main

sys.exit(main())
