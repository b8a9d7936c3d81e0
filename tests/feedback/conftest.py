"""What the tests of feedback share."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from kshare.feedback import report as report_module
from kshare.feedback.server import FeedbackServer
from tests.support.feedback import HERE


@pytest.fixture
def server() -> Iterator[FeedbackServer]:
    with closing(FeedbackServer(HERE)) as made:
        assert made.start()
        yield made


@pytest.fixture(autouse=True)
def forget_planners(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test hears of another's planners."""
    monkeypatch.setattr(report_module, "_unreachable", {})
    monkeypatch.setattr(report_module, "_held", [])
