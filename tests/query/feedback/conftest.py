"""What the tests of feedback share."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from kshare.query.feedback import messages as report_module
from kshare.query.feedback import server as server_module
from kshare.query.feedback.server import FeedbackServer
from tests.support.clock import WAIT_S
from tests.support.feedback import HERE


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FeedbackServer]:
    monkeypatch.setattr(server_module, "_HELLO_SECONDS_MAX", 10 * WAIT_S)  # a machine may be slow
    with closing(FeedbackServer(HERE)) as made:
        assert made.start()
        yield made


@pytest.fixture(autouse=True)
def forget_planners(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test hears of another's planners."""
    monkeypatch.setattr(report_module, "_unreachable", {})
    monkeypatch.setattr(report_module, "_held", [])
