"""``python -m kshare.cli``: the same as ``kshare``."""

import sys

from kshare.cli import main

sys.exit(main())
