"""Whose warning it is that stands between Spark's lines."""

import os
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


INFORM = 'logging.getLogger("kshare.read").info("a leader has moved")'


def printed(before: str = "", *, after: str = "", level: str = "") -> str:
    code = SOURCE.format(before=before) + after
    environment = os.environ | {"KSHARE_LOG_LEVEL": level}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert not run.stdout
    return run.stderr


def test_a_warning_has_time_level_and_name() -> None:
    (line,) = printed().splitlines()
    assert re.fullmatch(LINE, line)


def test_who_has_set_up_logging_has_the_last_word() -> None:
    assert printed("logging.basicConfig(format='mine %(message)s')").startswith("mine option key")
    assert printed("logging.basicConfig(level=logging.ERROR)") == ""


def test_a_variable_says_which_lines_are_shown() -> None:
    assert "a leader" not in printed(after=INFORM)
    assert printed(after=INFORM, level="info").endswith(" INFO kshare.read: a leader has moved\n")
    assert printed(after=INFORM, level="ERROR") == ""


def test_a_level_that_is_none_is_told() -> None:
    first, second = printed(after=INFORM, level="loud").splitlines()
    assert first.endswith(
        "KSHARE_LOG_LEVEL=loud is ignored; give one of DEBUG, INFO, WARNING, ERROR"
    )
    assert re.fullmatch(LINE, second)


def test_a_name_of_others_forges_no_line() -> None:
    hostile = (
        'logging.getLogger("kshare.group").warning("member %s", "a\\x1b[2J\\n26/01/01 INFO fine")'
    )
    _, member, forged = printed(after=hostile).splitlines()
    assert member.endswith(" WARNING kshare.group: member a?[2J")
    assert forged == "  26/01/01 INFO fine"
