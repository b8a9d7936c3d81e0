"""What the tests of options share: a base that parses, and short ways to ask."""

from collections.abc import Mapping

import pytest

from kshare.errors import OptionsError
from kshare.options import SourceOptions, parse_options

SERVERS = {"kafka.bootstrap.servers": "broker:9092"}
BASE = {**SERVERS, "subscribe": "t"}
SECRET = "s3cr3t-Hunter2"


def options(given: Mapping[str, str] | None = None, *, streaming: bool = True) -> SourceOptions:
    """The options of BASE and more; there is no warning."""
    parsed = parse_options({**BASE, **(given or {})}, streaming=streaming)
    assert parsed.warnings == ()
    return parsed.options


def warnings(given: Mapping[str, str], *, streaming: bool = True) -> tuple[str, ...]:
    """The warnings about options that parse."""
    return parse_options({**BASE, **given}, streaming=streaming).warnings


def problems(
    given: Mapping[str, str], *, streaming: bool = True, base: Mapping[str, str] = BASE
) -> tuple[str, ...]:
    """All faults of options that do not parse."""
    with pytest.raises(OptionsError) as caught:
        parse_options({**base, **given}, streaming=streaming)
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


def problem(given: Mapping[str, str], *, streaming: bool = True) -> str:
    """The one fault of options that do not parse."""
    (found,) = problems(given, streaming=streaming)
    return found
