"""Tables of SQL, whose options Spark does not hand to a Python data source."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from kshare.errors import OptionsError

__all__ = ["told_of_tables"]

_NOT_HANDED_OVER: Final = (
    "none was given. Spark does not hand the OPTIONS of CREATE TABLE to a Python data source: for "
    "a table, write CREATE TEMPORARY VIEW ... USING kshare OPTIONS (...) instead"
)


@contextmanager
def told_of_tables(options: Mapping[str, str]) -> Iterator[None]:
    """Parse options, and name the likely cause if there are none at all."""
    try:
        yield
    except OptionsError as error:
        if options:
            raise
        raise OptionsError([_NOT_HANDED_OVER, *error.problems]) from None
