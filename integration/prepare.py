"""Makes once what integration tests need: jars, archives of classes, a registry, browser, frames.

``python -m integration.prepare`` makes what is missing; with ``--proof``, what
:mod:`integration.proof` needs of it. Tests would make it too, but wait for it.
"""

import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from integration import jars
from integration.browser import INSTALLED, fetched
from integration.driver_pandas import frames_folder, pandas_folder
from integration.kafka import class_archive
from integration.prometheus import program
from integration.spark import archive_option


def _browser() -> None:
    if not any(map(shutil.which, INSTALLED)):
        fetched()


def main() -> None:
    """Make all of it side by side: most of the time goes into downloads."""
    steps: list[Callable[[], object]] = [class_archive, archive_option]
    if sys.argv[1:] != ["--proof"]:
        steps += [_browser, partial(program, "prometheus"), pandas_folder, frames_folder]
        steps.append(partial(jars.fetched, "registry"))
    with ThreadPoolExecutor() as pool:
        for made in [pool.submit(step) for step in steps]:
            made.result()


if __name__ == "__main__":
    main()
