"""``python -m kshare``: the same as ``kshare``."""

import sys

from kshare.cli import main

sys.exit(main())
