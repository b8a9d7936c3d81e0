"""Whose warning it is that stands between Spark's lines."""

import re
import subprocess
import sys

SOURCE = """
import logging, sys
{before}
from spark_plugin.source import KshareDataSource
given = {{"kafka.bootstrap.servers": "a:1", "subscribe": "t", "keyrange": "2"}}
source = KshareDataSource(given)
schema = source.schema()
source.reader(schema)
"""
LINE = r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d WARNING kshare: option keyrange is ignored.* keyRanges"


def printed(before: str = "") -> str:
    code = SOURCE.format(before=before)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not run.stdout
    return run.stderr


def test_a_warning_has_time_level_and_name() -> None:
    (line,) = printed().splitlines()
    assert re.fullmatch(LINE, line)


def test_who_has_set_up_logging_has_the_last_word() -> None:
    assert printed("logging.basicConfig(format='mine %(message)s')").startswith("mine option key")
    assert printed("logging.basicConfig(level=logging.ERROR)") == ""
