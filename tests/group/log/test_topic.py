"""Which partition of the log is a group's, and how its writer survives a fatal error."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.progress import TopicPartition
from kshare.errors import AuthenticationError, KafkaError
from kshare.group.log.topic import LogTopic, LogWriter, log_partition
from kshare.kafka.cluster import Cluster
from kshare.kafka.protocol.error_codes import Kind
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S
from tests.support.groups import LOG, eventually, group_config

BIG = 1 << 31  # partitions: the absolute value of the hash itself, if it is positive
L0 = TopicPartition(LOG, 0)
FATAL = "OUT_OF_ORDER_SEQUENCE_NUMBER"


@pytest.mark.parametrize(
    ("group", "absolute"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99_162_322),
        ("polygenelubricants", 0),  # -2^31, which has no absolute value
        ("hello, world", 640_608_884),
        ("console-consumer-8010", 836_602_008),
        ("\N{GRINNING FACE}", 1_772_899),  # two code units
    ],
)
def test_java_hashes(group: str, absolute: int) -> None:
    assert log_partition(group, BIG) == absolute


@given(st.text(), st.integers(1, 100))
def test_it_is_a_partition(group: str, partitions: int) -> None:
    assert 0 <= log_partition(group, partitions) < partitions


@given(st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"])))
def test_it_is_javas_hash(group: str) -> None:
    hashed = 0
    for letter in group:
        hashed = (31 * hashed + ord(letter) + BIG) % (2 * BIG) - BIG
    assert log_partition(group, BIG) == abs(hashed) % BIG


class Failures:
    """What has failed, in order."""

    def __init__(self) -> None:
        self.of: list[tuple[int, str]] = []

    def append(self, writer: LogWriter, number: int) -> None:
        writer.append(L0, b"key", b"%d" % number, partial(self._failed, number))

    def _failed(self, number: int, error: KafkaError, _: Kind) -> None:
        self.of.append((number, str(error)))

    @property
    def numbers(self) -> list[int]:
        return [number for number, _ in self.of]


class SilentProducer:
    """A producer whose first poll raises a fatal error, and whose reports come late."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.reports: list[Callable[..., None]] = []
        self.has_raised = False
        self.is_dead = False

    def produce(self, *_: Any, on_delivery: Callable[..., None]) -> None:
        if self.is_dead:
            raise KafkaException(RdKafkaError(RdKafkaError._FATAL))
        self.reports.append(on_delivery)

    def poll(self, _: float) -> int:
        if not self.has_raised:
            self.has_raised = self.is_dead = True
            raise KafkaException(RdKafkaError(RdKafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER))
        return 0

    def __len__(self) -> int:
        return len(self.reports)


def writer_of(producers: list[SilentProducer]) -> LogWriter:
    def make(*_: Any, **__: Any) -> Any:
        producers.append(SilentProducer())
        return producers[-1]

    return LogWriter(group_config("127.0.0.1:1").kafka, timeout_ms=5_000, producer=make)


@pytest.fixture
def failing() -> Iterator[tuple[LogWriter, Failures]]:
    """A writer whose first record is written, and whose second one meets a fatal error."""
    with FakeCluster(brokers=1, topics={LOG: 1}) as cluster:
        kafka = group_config(cluster.bootstrap_servers).kafka
        with closing(LogWriter(kafka, timeout_ms=5_000)) as writer:
            failures = Failures()
            failures.append(writer, 0)
            assert writer.flush(WAIT_S) == 0
            cluster.fail("Produce", [FATAL])
            failures.append(writer, 1)
            yield writer, failures


def test_who_writes_hears_where_its_record_is() -> None:
    with FakeCluster(brokers=1, topics={LOG: 1}) as cluster:
        kafka, offsets = group_config(cluster.bootstrap_servers).kafka, list[int]()
        with closing(LogWriter(kafka, timeout_ms=5_000)) as writer:
            for number in range(3):
                writer.append(L0, b"key", b"%d" % number, _fails, offsets.append)
            assert writer.flush(WAIT_S) == 0
        assert offsets == [0, 1, 2]


def _fails(error: KafkaError, _: Kind) -> None:
    raise error


def test_a_fatal_error_fails_what_was_not_taken_and_the_next_record_is_written(
    failing: tuple[LogWriter, Failures],
) -> None:
    writer, failures = failing

    def serve() -> bool:
        writer.serve()
        return bool(failures.of)

    eventually(serve)
    assert failures.numbers == [1]
    assert f"cannot write to {LOG}" in failures.of[0][1]
    failures.append(writer, 2)
    assert writer.flush(WAIT_S) == 0
    writer.serve()
    assert failures.numbers == [1]


def test_a_fatal_error_amid_a_flush(failing: tuple[LogWriter, Failures]) -> None:
    writer, failures = failing
    writer.flush(WAIT_S)
    assert failures.numbers == [1]


@pytest.mark.parametrize("meets", [LogWriter.serve, partial(LogWriter.flush, seconds=1.0)])
def test_what_has_no_report_fails_once(
    meets: Callable[[LogWriter], object], caplog: pytest.LogCaptureFixture
) -> None:
    producers: list[SilentProducer] = []
    writer, failures = writer_of(producers), Failures()
    for number in (1, 2):
        failures.append(writer, number)
    meets(writer)
    assert failures.numbers == [1, 2]
    for late in producers[0].reports:
        late(RdKafkaError(RdKafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER), None)
    assert failures.numbers == [1, 2]
    failures.append(writer, 3)
    assert [len(each.reports) for each in producers] == [2, 1]
    (said,) = [each for each in caplog.records if each.name == "kshare.group"]
    assert "the producer of the group's log has ended by a fatal error" in said.getMessage()


def test_a_record_that_a_dead_producer_refuses_fails_after_those_before_it() -> None:
    producers: list[SilentProducer] = []
    writer, failures = writer_of(producers), Failures()
    failures.append(writer, 1)
    producers[0].is_dead = True
    failures.append(writer, 2)
    assert failures.numbers == [1, 2]
    assert "out of order" in failures.of[1][1]  # why, not only that it was fatal
    failures.append(writer, 3)
    assert len(producers) == 2


def test_a_producer_whose_records_time_out_one_after_the_other_is_left_for_another() -> None:
    """As librdkafka's after the log had no leader for a while."""
    producers: list[SilentProducer] = []
    writer, failures = writer_of(producers), Failures()
    timed_out = RdKafkaError(RdKafkaError._MSG_TIMED_OUT)

    def append(number: int, error: RdKafkaError | None) -> None:
        failures.append(writer, number)
        producers[-1].has_raised = True
        producers[-1].reports[-1](error, None)
        writer.serve()

    append(1, timed_out)
    append(2, None)  # it has found its way again
    append(3, timed_out)
    assert len(producers) == 1
    append(4, timed_out)
    append(5, None)
    assert len(producers) == 2
    assert failures.numbers == [1, 3, 4]
    failures.append(writer, 6)
    failures.append(writer, 7)
    for report in producers[1].reports[-2:]:  # at once: they say nothing of each other
        report(timed_out, None)
    writer.serve()
    append(8, None)
    assert len(producers) == 2
    assert failures.numbers == [1, 3, 4, 6, 7]


class DeafAdmin:
    """A client that waits for a controller in vain; the second one finds it."""

    asked: ClassVar[list[float]] = []

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def poll(self, _: float) -> int:
        return 0

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Future[Any]]:
        self.asked.append(request_timeout)
        answer: Future[Any] = Future()
        if len(self.asked) == 1:
            answer.set_exception(KafkaException(RdKafkaError(RdKafkaError._TIMED_OUT)))
        else:
            answer.set_result(SimpleNamespace(topic_id="an id", partitions=[0]))
        return {LOG: answer}


def test_a_client_that_waits_in_vain_is_left_while_there_is_time_for_another_one() -> None:
    config = group_config("127.0.0.1:1")
    topic = LogTopic(config.kafka, LOG, 1 << 20, "g", admin=DeafAdmin)  # type: ignore[arg-type]
    assert topic.find() == (L0, "an id")
    assert DeafAdmin.asked == [10.0, 10.0]  # and so on: together default.api.timeout.ms


class RefusedAdmin(DeafAdmin):
    """A client whose login is refused: its requests are never answered, its callback says why."""

    def __init__(self, config: dict[str, Any], **_: Any) -> None:
        self._error_cb = config["error_cb"]

    def poll(self, _: float) -> int:
        self._error_cb(RdKafkaError(RdKafkaError._AUTHENTICATION, "Invalid username or password"))
        return 1

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Future[Any]]:
        return {LOG: Future()}


def test_a_refused_login_is_said_at_once() -> None:
    config = group_config("127.0.0.1:1")
    topic = LogTopic(config.kafka, LOG, 1 << 20, "g", admin=RefusedAdmin)  # type: ignore[arg-type]
    with pytest.raises(AuthenticationError, match=r"127.0.0.1:1: .*Invalid username or password"):
        topic.find()


def test_a_log_that_was_deleted_is_not_made_by_who_writes_to_it() -> None:
    """Brokers would make it with their defaults, so that claims are deleted after a week."""
    with FakeCluster(topics={"orders": 1}) as cluster:
        kafka, failures = group_config(cluster.bootstrap_servers).kafka, Failures()
        with closing(LogWriter(kafka, timeout_ms=500)) as writer:
            failures.append(writer, 0)
            writer.flush(WAIT_S)
            assert failures.numbers == [0]
        with closing(Cluster(kafka)) as seen:
            assert seen.topics() == ["orders"]
