"""A rolling upgrade: members of an earlier, this and a simulated later version run together."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, Final

import pytest

from kshare.core.hashing import KeyRanges
from kshare.group.config import shared_settings
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.membership import handle
from kshare.group.protocol.commit_log import record_codec
from kshare.group.protocol.commit_log.records import Record
from kshare.group.session import presence
from kshare.testing import FakeCluster
from tests.support.clock import until
from tests.support.groups import LOG, LOWER, T0, UPPER, join_together, quick_settings

RECORDS: Final = 60
_NEW: Final = {"hash", "reads", "settings"}
"""Fields that records of earlier versions do not have."""


class Versions:
    """Has each consumer write what its version writes; all read as this version does.

    An earlier version read fields by name, too: what is added, it passes over.

    Attributes:
        by_session: The version of each session: "earlier", "this" or "later".
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by_session: dict[str, str] = {}
        self._patch = monkeypatch
        self._value_of = record_codec._value_of
        monkeypatch.setattr(record_codec, "_value_of", self._write)

    def _write(self, record: Record) -> dict[str, Any]:
        names = ("name", "session_id", "author", "leader")
        author = next(getattr(record, name) for name in names if hasattr(record, name))
        version = self.by_session.get(author.partition("#")[0], "this")
        fields = self._value_of(record)
        if version == "earlier":
            return {name: value for name, value in fields.items() if name not in _NEW}
        return {"weight": [1, {"of": 2}], **fields} if version == "later" else fields

    def consumer(self, cluster: FakeCluster, version: str) -> KeySharedConsumer:
        """A consumer of a version; it has not read anything yet."""
        real = shared_settings.shared_settings
        said = {
            "earlier": lambda _: (),
            "this": real,
            "later": lambda config: tuple(sorted({**dict(real(config)), "newer": "7"}.items())),
        }
        for module in (handle, presence):
            self._patch.setattr(module, "shared_settings", said[version])
        made = KeySharedConsumer(quick_settings(cluster.bootstrap_servers))
        self.by_session[made._session.session_id] = version
        return made


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, LOG: 1}) as running:
        join_together(running)
        yield running


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> Versions:
    return Versions(monkeypatch)


def produce(cluster: FakeCluster, stage: int) -> set[int]:
    """Some records; returns their offsets."""
    rows = [(f"k{i % 20}", str(i)) for i in range(RECORDS)]
    cluster.produce("orders", rows, partition=0)
    return set(range(stage * RECORDS, (stage + 1) * RECORDS))


def consume(consumers: list[KeySharedConsumer], wanted: set[int]) -> None:
    """All of some records come, and are committed."""
    came: set[int] = set()

    def have_all() -> bool:
        for each in consumers:
            came.update(message.offset() for message in each.consume(RECORDS, 0.05))
        return came >= wanted

    until(have_all)
    for each in consumers:
        each.commit()


UPGRADE: Final = [
    ("earlier", "earlier"),
    ("this", "earlier"),
    ("this", "this"),
    ("later", "this"),
    ("later", "later"),
]


def upgraded(
    cluster: FakeCluster, versions: Versions, begin: Callable[[KeySharedConsumer, int], None]
) -> Iterator[tuple[int, list[KeySharedConsumer]]]:
    """Members that are replaced one by one: each stage, and the two that run then.

    Args:
        cluster: The cluster.
        versions: Makes the members.
        begin: Has a member subscribe, or assigns to it; with its place, 0 or 1.
    """
    with ExitStack() as stack:
        running: list[tuple[str, KeySharedConsumer]] = []
        for stage, wanted in enumerate(UPGRADE):
            for i, version in enumerate(wanted):
                if len(running) == 2 and running[i][0] == version:
                    continue
                if len(running) == 2:
                    running.pop(i)[1].close()
                made = versions.consumer(cluster, version)
                stack.enter_context(closing(made))
                begin(made, i)
                running.insert(i, (version, made))
            yield stage, [each for _, each in running]


def test_members_that_subscribe_are_upgraded_one_by_one(
    cluster: FakeCluster, versions: Versions, caplog: pytest.LogCaptureFixture
) -> None:
    members = upgraded(cluster, versions, lambda made, _: made.subscribe(["orders"]))
    for stage, consumers in members:
        until(lambda: _are_sharing(consumers))  # noqa: B023 - called at once
        consume(consumers, produce(cluster, stage))
    assert _errors(caplog) == []


def _errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno > logging.WARNING]


def _are_sharing(consumers: list[KeySharedConsumer]) -> bool:
    for each in consumers:
        each.consume(1, 0.05)
    return all(T0 in each.assignment() for each in consumers)


def test_members_with_assign_are_upgraded_one_by_one(
    cluster: FakeCluster, versions: Versions, caplog: pytest.LogCaptureFixture
) -> None:
    halves = (KeyRanges([LOWER]), KeyRanges([UPPER]))
    for stage, consumers in upgraded(
        cluster, versions, lambda made, i: made.assign({T0: halves[i]})
    ):
        consume(consumers, produce(cluster, stage))
    assert _errors(caplog) == []


def test_a_log_of_an_earlier_version_goes_on(cluster: FakeCluster, versions: Versions) -> None:
    """All members are stopped, and started as this version: nothing comes again."""
    for stage, version in enumerate(("earlier", "this")):
        with closing(versions.consumer(cluster, version)) as consumer:
            consumer.assign({T0: ()})
            consume([consumer], produce(cluster, stage))
            assert consumer.consume(1, 0.3) == []
