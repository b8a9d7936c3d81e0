"""``python -m kshare.options`` prints ``docs/options.md``."""

import sys

from kshare.options.documentation import options_page

sys.stdout.write(options_page())
