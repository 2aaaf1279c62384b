"""`python -m entryclip` is the command `entryclip`."""

import sys

from .cli import main

sys.exit(main())
