"""The event loops in which handlers run."""

import asyncio.events

import pytest
import uvloop


@pytest.fixture(params=["asyncio", "uvloop"])
def each_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test in a loop of each kind."""
    if request.param == "uvloop":
        monkeypatch.setattr(asyncio.events, "new_event_loop", uvloop.new_event_loop)
