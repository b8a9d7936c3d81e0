"""What all unit tests share."""

import logging
import random
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests.support import results
from tests.support.effort import USUAL

# No test depends on how fast the machine is. Without a profile, the same commit has the same result
# each time. "quick" is for make test, "all" for make test-all and "soak" for a night: the last two
# have new examples at each run, also where CI is set: Hypothesis has other defaults there.
settings.register_profile("usual", deadline=None, derandomize=True, max_examples=USUAL)
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=25)
settings.register_profile(
    "all", deadline=None, derandomize=False, print_blob=True, max_examples=USUAL
)
settings.register_profile(
    "soak", deadline=None, derandomize=False, print_blob=True, max_examples=1_000
)
settings.load_profile("usual")
_NEW = ("all", "soak")
_PROFILE, _SEED = "--hypothesis-profile", "--hypothesis-seed"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose a seed if examples are new, before Hypothesis looks for one."""
    if config.getoption(_PROFILE) in _NEW and config.getoption(_SEED) is None:
        told = getattr(config, "workerinput", {}).get(_SEED)
        config.option.hypothesis_seed = told or str(random.SystemRandom().randrange(1, 10**6))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell each worker the seed of all."""
    node.workerinput[_SEED] = node.config.getoption(_SEED)


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What is logged, but by librdkafka: it may speak of a client that an earlier test has left.

    An AdminClient ends when it is collected, which may be amid any test.
    """
    own = _OfOurs()
    caplog.handler.addFilter(own)
    yield caplog
    caplog.handler.removeFilter(own)


class _OfOurs(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.name != "kshare.client"


def pytest_report_header(config: pytest.Config) -> str | None:
    """Name the seed."""
    seed = config.getoption(_SEED)
    return None if seed is None else f"examples and walks of seed {seed}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of membership first: they wait most, and at the end nothing would run beside them."""
    items.sort(key=lambda item: "membership" not in item.path.parts)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say how each test that failed is repeated with the same examples."""
    seed, profile = config.getoption(_SEED), config.getoption(_PROFILE)
    if seed is None or hasattr(config, "workerinput"):
        return
    for name in results.of(config).failed:
        terminalreporter.write_line(
            f"repeat with: python -m pytest {shlex.quote(name)} {_PROFILE}={profile} {_SEED}={seed}"
        )
