"""How the log of a session is found, lost and looked at, by threads of their own."""

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kshare.core.progress import TopicPartition
from kshare.errors import InternalTopicError, KafkaError, UnknownTopicError
from kshare.group.core.ownerships import Ownerships
from kshare.group.log.tail import LastAnswer, LogLostError, LogTail, Row
from kshare.group.log.topic import LogTopic, LogWriter, Safety
from kshare.group.protocol.commit_log.record_codec import encode
from kshare.group.protocol.commit_log.records import Stable
from kshare.group.session.log_follower import LogFollower, LogInspector
from kshare.group.session.shared import Shared
from kshare.kafka.topic_config import TopicConfig
from tests.support.clock import WAIT_S, Clock, until
from tests.support.groups import LOG, group_config

L0 = TopicPartition(LOG, 0)


class Search:
    """A follower whose topic is found when the test says so.

    Attributes:
        may_find: Lets one search after the other end.
        answers: What they find, or raise.
        open: Which writers have a client.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_find = threading.Semaphore(0)
        self.answers: list[tuple[TopicPartition, str] | Exception] = []
        self.open: set[LogWriter] = set()
        self.clock = Clock()
        config = group_config("127.0.0.1:1")
        ownerships = Ownerships("me", "g", 0.4, uniform=lambda *_: 0.0)
        self.shared = Shared(ownerships)
        monkeypatch.setattr(LogInspector, "has_moved", lambda *_: False)
        monkeypatch.setattr(LogTopic, "find", lambda _: self._find())

        def connect(writer: LogWriter) -> None:
            self.open.add(writer)

        def close(writer: LogWriter) -> None:
            self.open.discard(writer)

        monkeypatch.setattr(LogWriter, "connect", connect)
        monkeypatch.setattr(LogWriter, "close", close)
        self.follower = LogFollower(
            config, config.kafka, self.shared, self.clock.monotonic, lambda: None
        )

    def _find(self) -> tuple[TopicPartition, str]:
        assert self.may_find.acquire(timeout=WAIT_S)
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def find(self, found: tuple[TopicPartition, str] | Exception) -> None:
        """Let the search find this."""
        self.answers.append(found)
        self.may_find.release()
        finding = self.follower._search.finding
        assert finding is not None
        until(finding.done)
        self.follower.ask()


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Iterator[Search]:
    made = Search(monkeypatch)
    made.follower.ask()
    yield made
    made.follower.close()


def test_a_writer_that_a_search_opens_is_closed_though_the_follower_is_closed_before(
    search: Search,
) -> None:
    until(lambda: search.open)
    finding = search.follower._search.finding
    assert finding is not None
    opened = search.open.copy()
    search.follower.close()
    assert search.open == opened  # by the thread that uses it
    search.answers.append((L0, "id"))
    search.may_find.release()
    until(lambda: not search.open)


def test_the_writer_of_the_next_log_is_connected_by_the_search_that_finds_it(
    search: Search,
) -> None:
    """Else the session's thread would fetch a token of OAUTHBEARER amid its loop."""
    follower = search.follower
    search.find((L0, "id"))
    for partition, topic_id in ((L0, "id"), (L0, "other"), (TopicPartition(LOG, 1), "other")):
        before = follower.link
        follower._find()
        search.find((partition, topic_id))
        assert follower.link is not None
        assert (follower.link is before) is (topic_id == "id")
        assert search.open == {follower.link.writer}
    assert follower.link is not None
    follower.link.truncated = "it ends before"
    follower._find()
    search.find((partition, topic_id))
    assert follower.link is not None
    assert search.open == {follower.link.writer}


def test_a_log_that_brokers_refuse_ends_the_session_and_is_not_looked_for_again(
    search: Search,
) -> None:
    with pytest.raises(InternalTopicError, match="cannot create topic"):
        search.find(InternalTopicError("cannot create topic log"))


def test_nothing_follows_from_a_log_that_was_truncated_until_its_topic_is_found(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others have written anew might be deleted by what the lost log has said."""
    follower = search.follower
    search.find((L0, "id"))
    link = follower.link
    assert link is not None
    assert follower.sound_link is link

    def take(_: LogTail) -> None:
        raise LogLostError("it ends at offset 3")

    monkeypatch.setattr(LogTail, "take", take)
    follower.receive()
    sound = [follower.sound_link]
    search.find(KafkaError("no broker answers"))
    sound.append(follower.sound_link)
    assert sound == [None, None]
    search.clock.now += 10
    follower.ask()
    search.find((L0, "id"))
    assert follower.sound_link is follower.link is not link


def test_the_end_of_the_log_is_known_once_what_was_read_counts(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first reading takes several answers while others write, and nothing counts before its end.

    Who waits for an end that is behind the first of them would take the group for a new one.
    """
    follower = search.follower
    search.find((L0, "id"))
    link = follower.link
    assert link is not None
    stable = Stable(TopicPartition("orders", 0), 0, 7, author="me#1")
    answers = [(False, 1), (False, 2), (True, 3), (False, 4)]

    def take(tail: LogTail) -> list[Row]:
        caught_up, position = answers.pop(0)
        tail.position = position
        tail.last = LastAnswer(caught_up, bounds=(3, 3))
        return [Row(position - 1, *encode("g", stable))]

    monkeypatch.setattr(LogTail, "take", take)
    ends, known = [], []
    while answers:
        follower.receive()
        log = search.shared.ownerships.log
        ends.append(log.end)
        known.append(log.of(stable.partition).stable is not None)
    assert ends == [0, 0, 3, 4]
    assert known == [False, False, True, True]


@pytest.mark.parametrize("maker", ["me", "another"])
def test_what_was_refused_is_forgotten_with_the_topic(
    search: Search, monkeypatch: pytest.MonkeyPatch, maker: str
) -> None:
    """Another one may be made by hand, with settings that are worth a warning."""
    refusals = [frozenset({"segment.bytes"}), frozenset()]
    monkeypatch.setattr(LogTopic, "make", lambda _: refusals.pop(0))
    follower = search.follower
    search.answers.append(UnknownTopicError("none"))
    search.may_find.release()
    search.find((L0, "id"))
    assert follower._search.refused == {"segment.bytes"}
    follower._find()
    search.find((L0, "id"))
    assert follower._search.refused == {"segment.bytes"}, "it is the same topic"
    follower._find()
    if maker == "me":
        search.answers.append(UnknownTopicError("none"))
        search.may_find.release()
    search.find((L0, "other"))
    assert follower._search.refused == frozenset()


def test_a_log_that_was_just_made_is_asked_for_until_its_broker_knows_it(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller tells brokers one by one."""
    monkeypatch.setattr(LogTopic, "make", lambda _: frozenset({"segment.bytes"}))
    for _ in range(3):
        search.answers.append(UnknownTopicError("none"))
        search.may_find.release()
    search.find((L0, "id"))
    assert search.follower.link is not None
    assert search.follower._search.refused == {"segment.bytes"}


LOG0, LOG3 = TopicPartition("log", 0), TopicPartition("log", 3)
COMPACT = {"cleanup.policy": "compact", "segment.bytes": "10485760"}


class Topic:
    """A topic that changes."""

    name = "log"

    def __init__(self, config: dict[str, str] | None = None) -> None:
        self.found = (LOG0, "id")
        self.values = COMPACT if config is None else config
        self.looks = 0
        self.is_away = False
        self.kept = (Safety(3, 2), Safety(3, 2))

    def find(self) -> tuple[TopicPartition, str]:
        if self.is_away:
            raise KafkaError("nobody answers")
        return self.found

    def config(self) -> TopicConfig:
        return TopicConfig.of(self.values)

    def safety(self) -> tuple[Safety, Safety]:
        return self.kept

    def close(self) -> None:
        self.looks += 1


class Later:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def inspector(topic: Topic, clock: Callable[[], float]) -> LogInspector:
    made: Any = lambda: topic  # noqa: E731
    return LogInspector(made, "billing", clock)


def await_looks() -> None:
    for thread in threading.enumerate():
        if thread.name == "kshare billing looks":  # it warns after it has closed the topic
            thread.join()


def look(looks: LogInspector, clock: Later) -> bool:
    """Look once more, and again when that has its answer."""
    clock.now += 60
    has_moved = looks.has_moved(LOG0, "id")
    await_looks()
    return has_moved or looks.has_moved(LOG0, "id")


def test_partitions_that_are_added_are_seen() -> None:
    topic, clock = Topic(), Later()
    looks = inspector(topic, clock)
    assert not look(looks, clock)
    topic.found = (LOG3, "id")
    assert look(looks, clock)
    assert not looks.has_moved(LOG0, "id")  # said once
    topic.is_away = True
    assert not look(looks, clock)
    topic.is_away, topic.found = False, (LOG3, "another id")
    assert not look(looks, clock)  # who reads it finds out


def test_one_look_at_a_time() -> None:
    """Brokers may take longer than the pause between two looks."""
    may_find, clock, begun = threading.Event(), Later(), []

    class Slow(Topic):
        def find(self) -> tuple[TopicPartition, str]:
            begun.append(clock.now)
            assert may_find.wait(WAIT_S)
            return super().find()

    looks = inspector(Slow(), clock)
    for _ in range(5):
        clock.now += 60
        looks.has_moved(LOG0, "id")
    may_find.set()
    await_looks()
    assert len(begun) == 1


def test_it_is_looked_at_now_and_then_only() -> None:
    topic, clock = Topic(), Later()
    looks = inspector(topic, clock)
    look(looks, clock)
    for _ in range(100):
        looks.has_moved(LOG0, "id")
    assert topic.looks == 1


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, ""),
        ({"min.compaction.lag.ms": "60000"}, ""),
        ({"cleanup.policy": "delete"}, "Set its cleanup.policy to compact"),
        ({"cleanup.policy": "compact,delete", "retention.ms": "1"}, "Set its cleanup.policy"),
        ({"cleanup.policy": "compact,delete", "retention.bytes": "1"}, "Set its cleanup.policy"),
        ({"min.compaction.lag.ms": "86400000"}, "min.compaction.lag.ms is 86400000"),
        ({"segment.bytes": "1073741824"}, "segment.bytes is 1073741824"),
    ],
)
def test_settings_that_lose_or_keep_too_much_are_a_warning_once(
    config: dict[str, str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kshare.group")
    topic, clock = Topic({**COMPACT, **config}), Later()
    looks = inspector(topic, clock)
    look(looks, clock)
    look(looks, clock)
    assert len(caplog.messages) == bool(said)
    for text in caplog.messages:
        assert text.startswith("topic log, the log of group billing, ")
        assert said in text


def test_nothing_is_asked_for_that_brokers_have_refused(caplog: pytest.LogCaptureFixture) -> None:
    topic, clock = Topic({**COMPACT, "segment.bytes": str(1 << 30)}), Later()
    made: Any = lambda: topic  # noqa: E731
    looks = LogInspector(made, "billing", clock, lambda: {"segment.bytes"})
    look(looks, clock)
    assert topic.looks == 1
    assert not caplog.messages


@pytest.mark.parametrize(
    ("own", "wanted", "said"),
    [
        (Safety(1, 1), Safety(1, 1), ""),
        (Safety(3, 2), Safety(2, 1), ""),
        (Safety(1, 1), Safety(2, 0), "has 1 replicas, and should have 2"),
        (Safety(2, 1), Safety(3, 1), "has 2 replicas, and should have 3"),
        (Safety(3, 1), Safety(3, 2), "has min.insync.replicas=1, and __consumer_offsets 2"),
        (Safety(3, 0), Safety(3, 2), ""),  # it is not known
    ],
)
def test_a_log_that_is_kept_worse_than_offsets_is_a_warning_once(
    own: Safety, wanted: Safety, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kshare.group")
    topic, clock = Topic(), Later()
    topic.kept = own, wanted
    looks = inspector(topic, clock)
    look(looks, clock)
    look(looks, clock)
    assert len(caplog.messages) == bool(said)
    assert said in caplog.text
