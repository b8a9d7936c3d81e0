"""``python -m kshare``: the same as ``kshare``."""

import os
import sys

from kshare.console import main
from kshare.start_folder import put_installed_first

put_installed_first(os.curdir)  # "-m" has put the current folder first on the path

sys.exit(main())
