"""A line of a log is one line, whatever others have named."""

import logging
import sys

from kshare.log_format import PrintableFormatter


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("kshare", logging.WARNING, "", 0, text, None, None)


def test_what_others_have_named_forges_no_line_and_moves_no_cursor() -> None:
    formatter = PrintableFormatter("%(levelname)s %(message)s")
    shown = formatter.format(record("topic a\x1b[2J\rb\nERROR all is lost"))
    assert shown == "WARNING topic a?[2J?b\n  ERROR all is lost"


def test_a_traceback_has_its_lines() -> None:
    failed = record("no")
    try:
        raise ValueError("bad\x07")
    except ValueError:
        failed.exc_info = sys.exc_info()
    first, *more = PrintableFormatter("%(message)s").format(failed).split("\n")
    assert (first, more[0].strip(), more[-1].strip()) == (
        "no",
        "Traceback (most recent call last):",
        "ValueError: bad?",
    )
    assert all(line.startswith("  ") for line in more)
