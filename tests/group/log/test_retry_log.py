"""Attempts and sequences are kept in the group's log, and others pass over them."""

import threading
import time
from collections.abc import Collection
from typing import Any, cast

import pytest

from kshare.core.progress import TopicPartition
from kshare.errors import AuthorizationError, UnknownTopicError
from kshare.group.log.retry_log import Reason, RetryLog, Sequenced
from kshare.group.protocol.commit_log.group_reader import GroupReader
from kshare.group.protocol.commit_log.log import GroupLog
from kshare.kafka.compacted_topic import Changes, CompactedTopic, Row
from kshare.processing import Processor
from tests.processing.engines import PARTITION, records_of
from tests.support.clock import WAIT_S

LOG = TopicPartition("__individual_commit_offsets", 3)


class MemoryTable:
    """A log in memory, which several processes read and write."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.position = 0

    def read(self) -> Changes:
        new, self.position = self.rows[self.position :], len(self.rows)
        return Changes(tuple(new), restarted=False)

    def partitions(self) -> tuple[TopicPartition, ...]:
        return (LOG,)

    def write(
        self,
        rows: Collection[tuple[bytes, bytes | None]],
        partition: int = -1,
        seconds: float = float("inf"),
    ) -> None:
        assert partition == LOG.partition
        for key, value in rows:
            self.rows.append(Row(partition, len(self.rows), key, value))

    def shorten_timeout(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        pass


def log_of(log: list[Row], group: str) -> RetryLog:
    return RetryLog(cast("CompactedTopic", MemoryTable(log)), group)


def test_attempts_and_sequences_are_known_after_a_restart_until_they_are_over() -> None:
    log = list[Row]()
    first, second = records_of(Processor(print), [b"a", b"b"])
    first.failures, first.since, first.due = 3, 1000.5, 1030.25
    before = log_of(log, "billing")
    before.remember(first)
    second.failures, second.since = 2, 1001.5
    before.begin_sequence(second, Reason("builtins.OSError", "no"))
    before.close()

    after, other = log_of(log, "billing"), log_of(log, "audit")
    known = after.read()
    mark = Sequenced(second.offset, Reason("builtins.OSError", "no"), 2, 1001.5)
    assert known.sequences == {(PARTITION, b"b"): mark}
    (again, _) = records_of(Processor(print), [b"a", b"b"])
    known.recall(again)
    assert (again.failures, again.since, again.due) == (3, 1000.5, 1030.25)
    assert not other.read().attempts
    after.forget(again)
    after.end_sequence(PARTITION, b"b")
    after.close()
    last = log_of(log, "billing").read()
    assert not last.attempts
    assert not last.sequences


def test_a_mark_keeps_what_ends_it_and_where_it_has_ended() -> None:
    log = list[Row]()
    (record,) = records_of(Processor(print), [b"a"])
    record.failures, record.since = 2, 1001.5
    retry_log = log_of(log, "billing")
    retry_log.begin_sequence(record, Reason("builtins.OSError", "no"))
    mark = retry_log.read().sequences[PARTITION, b"a"]
    retry_log.offer_release(PARTITION, b"a", mark, "token")
    offered = log_of(log, "billing").read().sequences[PARTITION, b"a"]
    assert offered == mark._replace(release="token")
    retry_log.end_sequence_at(PARTITION, b"a", offered, 12)
    ended = log_of(log, "billing").read().sequences[PARTITION, b"a"]
    assert ended == offered._replace(until=12)


def test_whoever_reads_the_groups_log_passes_over_them() -> None:
    """Whatever the group's name is, also that of a topic or of a kind."""
    for group in ("billing", "orders", "attempt", "a", "kshare.processing of group"):
        log = list[Row]()
        (record,) = records_of(Processor(print), [b"a"])
        retry_log = log_of(log, group)
        retry_log.remember(record)
        retry_log.begin_sequence(record, Reason())
        retry_log.close()
        for reader_of in ("billing", "orders", "attempt", "sequence", group):
            reader = GroupReader(LOG, GroupLog(reader_of), keeps_keys=True)
            for row in log:
                reader.apply(row.offset, row.key or b"", row.value)
            reader.check()
            assert not reader.keys


def test_what_is_flushed_is_in_the_log_before_it_is_closed() -> None:
    log = list[Row]()
    retry_log = log_of(log, "billing")
    retry_log.flush(WAIT_S)  # nothing was to be written
    for record in records_of(Processor(print), [b"%d" % i for i in range(30)]):
        record.failures = 1
        retry_log.remember(record)
    retry_log.flush(WAIT_S)
    assert len(log_of(log, "billing").read().attempts) == 30
    retry_log.close()


def test_a_flush_that_takes_too_long_says_so(caplog: pytest.LogCaptureFixture) -> None:
    table, may_write = MemoryTable([]), threading.Event()
    write = table.write

    def waits(
        rows: Collection[tuple[bytes, bytes | None]], partition: int = -1, seconds: float = 0.0
    ) -> None:
        assert may_write.wait(WAIT_S)
        write(rows, partition)

    table.write = waits  # type: ignore[method-assign]
    retry_log = RetryLog(cast("CompactedTopic", table), "billing")
    (record,) = records_of(Processor(print), [b"a"])
    retry_log.remember(record)
    retry_log.flush(0.01)
    assert "were not written within 0.01 s" in caplog.text
    may_write.set()
    retry_log.close()


def test_many_attempts_are_written_in_parts() -> None:
    """As librdkafka queues no more than 100,000 messages."""
    log, sizes = list[Row](), list[int]()
    table = MemoryTable(log)
    is_queued, write = threading.Event(), table.write

    def waits(
        rows: Collection[tuple[bytes, bytes | None]], partition: int = -1, seconds: float = 0.0
    ) -> None:
        assert is_queued.wait(WAIT_S)
        sizes.append(len(rows))
        write(rows, partition)

    table.write = waits  # type: ignore[method-assign]
    retry_log = RetryLog(cast("CompactedTopic", table), "billing")
    for record in records_of(Processor(print), [b"%d" % i for i in range(25_000)]):
        retry_log.remember(record)
    is_queued.set()
    retry_log.close()
    assert max(sizes) <= 10_000
    assert len(log_of(log, "billing").read().attempts) == 25_000


def test_threads_whose_first_attempts_come_at_once_have_one_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second one would never end, and whoever closes would wait for it."""
    first, second = records_of(Processor(print), [b"a", b"b"])
    log = list[Row]()
    memory = log_of(log, "billing")
    make, writers, others = threading.Thread.__init__, list[str](), list[threading.Thread]()

    def makes(thread: threading.Thread, *given: Any, **named: Any) -> None:
        make(thread, *given, **named)
        if named.get("name") == "kshare memory":
            writers.append(thread.name)
            if not others:  # another thread comes before this one is known
                others.append(threading.Thread(target=memory.remember, args=(second,)))
                others[0].start()
                others[0].join(0.2)

    monkeypatch.setattr(threading.Thread, "__init__", makes)
    memory.remember(first)
    others[0].join()
    assert len(writers) == 1
    memory.close()
    assert len(log) == 2


def test_who_closes_waits_for_a_cluster_that_is_gone_no_longer_than_it_says(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And whoever reads the log learns what is not kept."""
    table, seconds_given = MemoryTable(list[Row]()), list[float]()
    is_writing, goes_on, is_closed = threading.Event(), threading.Event(), threading.Event()

    def hangs(rows: Any, partition: int, seconds: float) -> None:
        seconds_given.append(seconds)
        is_writing.set()
        assert goes_on.wait(WAIT_S)

    table.write, table.close = hangs, is_closed.set  # type: ignore[method-assign,assignment]
    retry_log = RetryLog(cast("CompactedTopic", table), "billing")
    first, second = records_of(Processor(print), [b"a", b"b"])
    retry_log.remember(first)
    assert is_writing.wait(WAIT_S)
    retry_log.remember(second)
    retry_log.close(0.01)
    assert "not written within 0.01 s: a restart does not know of them" in caplog.text
    assert not is_closed.is_set()  # what is under way uses the connections
    goes_on.set()
    assert is_closed.wait(WAIT_S)
    assert seconds_given == [float("inf")]  # there is no time for another one


def test_what_a_write_that_ends_late_leaves_behind_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table, is_writing = MemoryTable(list[Row]()), threading.Event()

    def ends_late(*_: Any) -> None:
        is_writing.set()
        while time.monotonic() <= retry_log._until:
            time.sleep(0.001)

    table.write = ends_late  # type: ignore[method-assign,assignment]
    retry_log = RetryLog(cast("CompactedTopic", table), "billing")
    first, second = records_of(Processor(print), [b"a", b"b"])
    retry_log.remember(first)
    assert is_writing.wait(WAIT_S)
    retry_log.remember(second)
    retry_log.close(0.01)
    assert "not written within 0.01 s" in caplog.text


class AbsentTable(MemoryTable):
    """A log that nobody has made yet."""

    times_made = 0

    def partitions(self) -> tuple[TopicPartition, ...]:
        if not self.times_made:
            raise UnknownTopicError("topic __individual_commit_offsets does not exist")
        return super().partitions()

    def make(self) -> None:
        self.times_made += 1

    def await_topic(self) -> None:
        assert self.times_made


def test_the_log_is_made_for_its_first_record() -> None:
    table = AbsentTable(list[Row]())
    retry_log = RetryLog(cast("CompactedTopic", table), "billing", table.make)
    (record,) = records_of(Processor(print), [b"a"])
    assert not retry_log.read().attempts
    assert table.times_made == 0
    retry_log.begin_sequence(record, Reason())
    assert table.times_made == 1
    assert retry_log.read().sequences.keys() == {(PARTITION, b"a")}
    retry_log.close()


def test_who_may_not_make_the_log_learns_why(caplog: pytest.LogCaptureFixture) -> None:
    """Attempts are not kept then, which is said; and no letter goes before its mark."""
    table = AbsentTable(list[Row]())

    def refused() -> None:
        raise AuthorizationError("no right to make topic __individual_commit_offsets")

    retry_log = RetryLog(cast("CompactedTopic", table), "billing", refused)
    (record,) = records_of(Processor(print), [b"a"])
    with pytest.raises(AuthorizationError, match="no right to make topic"):
        retry_log.begin_sequence(record, Reason())
    retry_log.remember(record)
    retry_log.close(WAIT_S)
    assert "attempts were not written: no right to make topic" in caplog.text
    assert not table.rows


def test_the_last_write_has_the_time_that_is_left() -> None:
    table, given = MemoryTable(list[Row]()), list[float]()
    is_queued, write = threading.Event(), table.write

    def counts(rows: Any, partition: int, seconds: float) -> None:
        assert is_queued.wait(WAIT_S)
        given.append(seconds)
        write(rows, partition)

    def shorten_timeout(seconds: float) -> None:
        given.append(seconds)
        is_queued.set()

    table.write, table.shorten_timeout = counts, shorten_timeout  # type: ignore[method-assign,assignment]
    retry_log = RetryLog(cast("CompactedTopic", table), "billing")
    for record in records_of(Processor(print), [b"%d" % at for at in range(10_001)]):
        retry_log.remember(record)
    retry_log.close(WAIT_S)
    limit, *_, last = given
    assert limit == WAIT_S
    assert 0 < last < WAIT_S
    assert len(table.rows) == 10_001


POISON = [
    b"[" * 100_000,
    b'{"failures":"x","since_ms":1,"due_ms":1}',
    b'{"failures":-1,"since_ms":1,"due_ms":1}',
    b'{"failures":1,"since_ms":1' + b"0" * 400 + b',"due_ms":1}',
    b'{"failures":1,"since_ms":1,"due_ms":9223372036854775807}',
    b'{"failures":1,"since_ms":1,"due_ms":1e999}',
    b'{"failures":true,"since_ms":1,"due_ms":NaN}',
    b'{"failures":1,"since_ms":1,"due_ms":1,"hash":"x"}',
    b"[]",
    b"7",
    b" " * (3 << 20),
    b"\xff",
]


@pytest.mark.parametrize("value", POISON, ids=lambda value: repr(value[:30]))
def test_a_record_that_cannot_be_read_costs_what_it_speaks_of(
    value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever may write to the log has written it: the group goes on without it."""
    log = list[Row]()
    first, second = records_of(Processor(print), [b"a", b"b"])
    first.failures = second.failures = 2
    before = log_of(log, "billing")
    before.remember(first)
    before.remember(second)
    before.close()
    poisoned = log[-1]
    log.append(poisoned._replace(offset=poisoned.offset + 1, value=value))
    known = log_of(log, "billing").read()
    assert set(known.attempts) >= {(PARTITION, first.offset)}
    assert "is no record of a processor, and is passed over" in caplog.text
    assert len(caplog.text) < 2_000


@pytest.mark.parametrize(
    "rest", [b'"attempt",' + b"[" * 100_000, b'"attempt","orders",1e999,0]', b'"attempt"]', b""]
)
@pytest.mark.parametrize("of", ["billing", "audit"])
def test_a_key_that_cannot_be_read_costs_nobody_its_start(rest: bytes, of: str) -> None:
    """Of another group, it is not even parsed."""
    key = b'[1,{"kshare.processing of group":"%s"},' % of.encode() + rest
    log = list[Row]()
    (record,) = records_of(Processor(print), [b"a"])
    before = log_of(log, "billing")
    before.remember(record)
    before.close()
    for value in (b"{}", None):  # a tombstone has the same key
        log.append(log[-1]._replace(offset=log[-1].offset + 1, key=key, value=value))
    assert len(log_of(log, "billing").read().attempts) == 1
