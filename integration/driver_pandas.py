"""pandas for a driver: PySpark wants it for ``mapInArrow``, though no row passes it.

Beside it, the libraries of data frames that docs/arrow.md reads Kafka into. None of them is in the
tests' environment: pandas, as readers and consumers import it where it is installed (pyarrow does,
to convert lists), and tests see to it that they need it not. ``make prepare`` installs them once,
in ``.cache``.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from integration.jars import CACHE, locked

__all__ = ["folder_with", "frames_folder", "pandas_folder"]

_PACKAGES = ("pandas>=2.2,<3", "python-dateutil", "pytz", "six", "tzdata")
_FRAMES = ("duckdb>=1.3", "polars>=1.30", "polars-runtime-32")


def pandas_folder() -> Path:
    """Return the folder with pandas, for a driver's path; it is made if missing."""
    return folder_with("pandas", _PACKAGES)


def frames_folder() -> Path:
    """Return the folder with Polars and DuckDB, for the path; it is made if missing."""
    return folder_with("frames", _FRAMES)


def folder_with(name: str, packages: Sequence[str]) -> Path:
    """Return a folder with packages, for the path; it is made if missing.

    Args:
        name: Of the folder.
        packages: What pip installs, without what they depend on.
    """
    folder = CACHE / f"{name}-{sys.version_info.major}.{sys.version_info.minor}"
    ready = folder / "ready"
    with locked(CACHE / f"{name}.lock"):
        if not ready.exists():
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--no-deps"]
            subprocess.run([*install, "--target", str(folder), *packages], check=True)
            ready.touch()
    return folder
