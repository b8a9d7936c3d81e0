"""Jars, and archives of the classes in them: what the integration tests need and is made once.

``python -m integration.prepare`` makes what is missing. Tests would make it too, but wait for it.
"""

from integration.kafka import class_archive
from integration.spark import archive_option

if __name__ == "__main__":
    class_archive()
    archive_option()
