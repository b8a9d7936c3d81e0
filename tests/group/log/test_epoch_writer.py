"""Epochs on their way into the log."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from kshare.core.hashing import ALL_HASHES
from kshare.core.progress import TopicPartition
from kshare.group.log.log_link import EpochWriter, LogLink
from kshare.group.protocol.commit_log.log import GroupLog
from kshare.group.protocol.commit_log.records import Claim, Epoch, EpochMember, key_of

EPOCH = Epoch(3, "m", (EpochMember("m", "m-1", "host"),))


class Link:
    """A log that takes records, and does not say when it has them."""

    def __init__(self) -> None:
        self.appended: list[bytes] = []
        self.partition, self.topic_id, self.denied = 0, "old", None
        self.writer = SimpleNamespace(append=self._append)

    def _append(
        self, partition: int, key: bytes, value: bytes | None, failed: Any, written: Any
    ) -> None:
        self.appended.append(key)
        self.written = written


def unblock(_: frozenset[str]) -> None:
    raise AssertionError("nothing hides the epoch")


def test_an_epoch_that_was_not_read_back_is_written_into_the_next_log() -> None:
    """The leader waits for it: without it, it would neither plan nor join again."""
    writer, link, heard = EpochWriter("g", unblock), Link(), []
    first, second = GroupLog("g"), GroupLog("g")
    writer.write(EPOCH, lambda epoch, topic_id: heard.append((epoch, topic_id)), lambda: True)
    assert not writer.is_lost(first)
    writer.serve(cast("LogLink", link), first, 0.0)
    assert not writer.is_lost(first)
    assert len(link.appended) == 1
    link.topic_id = "new"
    assert writer.is_lost(second)
    writer.serve(cast("LogLink", link), second, 1.0)
    assert (len(link.appended), heard) == (2, [])
    second.apply(7, key_of(EPOCH), EPOCH)
    writer.serve(cast("LogLink", link), second, 2.0)
    assert heard == [(7, "new")]


def test_who_waits_for_no_epoch_has_nothing_to_do_after_the_log_was_lost() -> None:
    writer, link = EpochWriter("g", unblock), Link()
    for now in (0.0, 1.0):
        log = GroupLog("g")
        assert writer.is_lost(log) is bool(now)
        writer.serve(cast("LogLink", link), log, now)
    assert writer.retry_at == float("inf")


def test_what_a_former_member_has_left_open_does_not_hide_the_epoch() -> None:
    """Nobody is assigned anything before it is read back, so nobody else would abort that."""
    unblocked: list[frozenset[str]] = []
    writer, link, log = EpochWriter("g", unblocked.append), Link(), GroupLog("g")
    at = TopicPartition("orders", 0)
    for position, claim in enumerate(
        (
            Claim(at, "m#1", ALL_HASHES, 0, "stays"),
            Claim(at, "gone#2", ALL_HASHES, 0, "gone"),
            Claim(at, "alone", ALL_HASHES, None, "no member"),
            Claim(at, "plain#1", ALL_HASHES, 0),
            Claim(at, "before#1", ALL_HASHES, 0, "stays"),  # its process has started again, as m
        ),
        1,
    ):
        log.apply(position, key_of(claim), claim)
    writer.write(EPOCH, lambda *_: None, lambda: True)
    for now in (0.0, 1.0):
        writer.serve(cast("LogLink", link), log, now)
    assert unblocked == [frozenset({"gone"})]
    writer.write(replace(EPOCH, generation=4), lambda *_: None, lambda: True)
    writer.serve(cast("LogLink", link), log, 2.0)
    assert unblocked == [frozenset({"gone"})] * 2
    log.apply(9, key_of(EPOCH), replace(EPOCH, generation=4))
    writer.serve(cast("LogLink", link), log, 3.0)
    assert len(unblocked) == 2


def test_an_epoch_whose_generation_is_over_is_not_written_again() -> None:
    """It would come after that of its successor, whose members are those of the group."""
    writer, link, log = EpochWriter("g", unblock), Link(), GroupLog("g")
    generation = 3
    writer.write(EPOCH, lambda *_: None, lambda: generation == 3)
    writer.serve(cast("LogLink", link), log, 0.0)
    writer.retry_at = 1.0  # the broker did not take it
    generation = 4
    writer.serve(cast("LogLink", link), log, 2.0)
    writer.write(EPOCH, lambda *_: None, lambda: generation == 3)
    writer.serve(cast("LogLink", link), log, 3.0)
    assert len(link.appended) == 1
    assert writer.retry_at == float("inf")


def test_an_epoch_that_compaction_has_dropped_unread_is_written_again() -> None:
    """All epochs have one key: of two that come at once, compaction keeps the later one alone."""
    writer, link, log, heard = EpochWriter("g", unblock), Link(), GroupLog("g"), []
    writer.write(EPOCH, lambda at, _: heard.append(at), lambda: True)
    writer.serve(cast("LogLink", link), log, 0.0)
    link.written(4)
    writer.serve(cast("LogLink", link), log, 1.0)  # it is still to be read
    assert (len(link.appended), writer.retry_at) == (1, float("inf"))
    log.apply(5, key_of(EPOCH), replace(EPOCH, generation=2))
    writer.serve(cast("LogLink", link), log, 2.0)
    assert 2.0 < writer.retry_at < 3.0
    writer.serve(cast("LogLink", link), log, 3.0)
    assert len(link.appended) == 2
    log.apply(6, key_of(EPOCH), EPOCH)
    writer.serve(cast("LogLink", link), log, 4.0)
    assert heard == [6]
