"""Makes once what integration tests need: jars, archives of classes, browser, Prometheus, pandas.

``python -m integration.prepare`` makes what is missing. Tests would make it too, but wait for it.
"""

import shutil

from integration.browser import INSTALLED, fetched
from integration.driver_pandas import pandas_folder
from integration.kafka import class_archive
from integration.prometheus import program
from integration.spark import archive_option

if __name__ == "__main__":
    class_archive()
    archive_option()
    if not any(map(shutil.which, INSTALLED)):
        fetched()
    program("prometheus")
    pandas_folder()
