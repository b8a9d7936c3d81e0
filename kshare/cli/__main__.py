"""``python -m kshare.cli``: the same as ``kshare``."""

import os
import sys

from kshare.start_folder import put_installed_first

put_installed_first(os.curdir)  # "-m" has put the current folder first on the path

try:
    from kshare.cli import main

    sys.exit(main())
except KeyboardInterrupt:
    sys.stderr.write("interrupted\n")
    sys.exit(130)
