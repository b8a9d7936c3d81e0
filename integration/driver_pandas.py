"""pandas for a driver: PySpark wants it for ``mapInArrow``, though no row passes it.

It is not in the tests' environment, as readers and consumers import it where it is installed
(pyarrow does, to convert lists), and tests see to it that they need it not. ``make prepare``
installs it once, in ``.cache``.
"""

import subprocess
import sys
from pathlib import Path

from integration.jars import CACHE, locked

__all__ = ["pandas_folder"]

_PACKAGES = ("pandas>=2.2,<3", "python-dateutil", "pytz", "six", "tzdata")


def pandas_folder() -> Path:
    """Return the folder with pandas, for a driver's path; it is made if missing."""
    folder = CACHE / f"pandas-{sys.version_info.major}.{sys.version_info.minor}"
    ready = folder / "ready"
    with locked(CACHE / "pandas.lock"):
        if not ready.exists():
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--no-deps"]
            subprocess.run([*install, "--target", str(folder), *_PACKAGES], check=True)
            ready.touch()
    return folder
