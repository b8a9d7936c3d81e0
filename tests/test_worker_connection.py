"""What a worker of Spark sends and gets never waits for an acknowledgement.

The other side is a connection as Spark's JVM leaves it: what it sends second is held back until the
first is acknowledged, which the system does 40 ms later by itself.
"""

import copy
import io
import os
import pickle
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import BinaryType, StructField, StructType

from kshare.operating_system import POSIX
from kshare.processing import Processor, Record, work
from kshare.processing.frames import process_by_key
from kshare.processing.work import Work
from kshare.worker_connection import acknowledging, worker_output
from spark_plugin.plain_reader import PlainReader
from spark_plugin.readers import BatchReader, StreamReader
from spark_plugin.sink import batch_sink, stream_sink
from tests.support.options import SERVERS, options

ROWS = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
TOPIC = {**SERVERS, "topic": "t"}


class Frame:
    """A frame that keeps what tasks would run."""

    columns: list[str] = ["key", "value"]  # noqa: RUF012 - as Spark's
    schema = ROWS

    def mapInArrow(self, func: Any, schema: Any) -> Any:  # noqa: N802
        return func


def handler(record: Record) -> None:
    """Is never called."""


SENT: dict[str, Callable[[], Any]] = {
    "a batch reader": lambda: BatchReader(options(streaming=False)),
    "a stream's reader": lambda: StreamReader(options()),
    "a stream's reader before Spark 4.2": lambda: PlainReader(StreamReader(options())),
    "a batch sink": lambda: batch_sink(TOPIC, ROWS, overwrite=False),
    "a stream's sink": lambda: stream_sink(TOPIC, ROWS),
    "handlers": lambda: process_by_key(Frame(), Processor(handler)),
}


class Connection:
    """Both ends of a connection on which answers have followed messages for a while."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.spark = socket.create_connection(listener.getsockname())
            self.worker, _ = listener.accept()
        for _ in range(8):  # the worker's system now keeps acknowledgements for answers
            for sender, receiver in ((self.spark, self.worker), (self.worker, self.spark)):
                sender.sendall(b"x")
                assert receiver.recv(1) == b"x"

    def second(self) -> bytes:
        """What has come to the worker and is not read yet; empty if nothing has."""
        try:
            return self.worker.recv(100, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""

    def send_task(self) -> None:
        """Send two messages, of which the worker reads the first."""
        self.spark.sendall(b"first")
        assert self.worker.recv(5) == b"first"
        self.spark.sendall(b"second")

    def close(self) -> None:
        self.spark.close()
        self.worker.close()


@pytest.fixture
def connection() -> Iterator[Connection]:
    made = Connection()
    yield made
    made.close()


def in_worker(run: Callable[[], Any], output: object, name: str = "pyspark.worker") -> Any:
    """Call a function as a worker's main function does."""
    module: dict[str, Any] = {"__name__": name, "run": run}
    exec("def main(infile, outfile):\n    return run()", module)
    return module["main"](None, output)


def unpickle(sent: bytes, connection: Connection, name: str = "pyspark.worker") -> Any:
    """Unpickle what a worker gets."""
    with connection.worker.makefile("wb") as output:
        return in_worker(lambda: pickle.loads(sent), output, name)


@pytest.mark.parametrize("what", SENT)
def test_the_second_message_of_a_task_comes_at_once(what: str, connection: Connection) -> None:
    dumps: Any = cloudpickle.dumps
    sent = dumps(SENT[what]())
    for _ in range(3):  # a worker's tasks
        connection.send_task()
        unpickle(sent, connection)
        assert connection.second() == b"second"
        connection.worker.sendall(b"rows")
        assert connection.spark.recv(4) == b"rows"
    assert connection.worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_it_is_held_back_without(connection: Connection) -> None:
    """Else the tests here show nothing. One of several tries, as 40 ms may pass in between."""
    held = []
    for _ in range(20):
        connection.send_task()
        held.append(not connection.second())
        if held[-1]:
            assert connection.worker.recv(6) == b"second"
        connection.worker.sendall(b"rows")
        assert connection.spark.recv(4) == b"rows"
    assert any(held)


def test_what_was_sent_is_as_it_was(connection: Connection) -> None:
    sent = StreamReader(options({"keyRanges": "3"}))
    got = unpickle(pickle.dumps(sent), connection)
    assert got.options == sent.options
    assert vars(got) == sent.__getstate__()


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda sent: pickle.loads(pickle.dumps(sent)),
}


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("what", ["a batch reader", "a stream's reader", "a stream's sink"])
def test_a_driver_copies_it_as_anything(what: str, copied: str) -> None:
    sent = SENT[what]()
    made = COPIES[copied](sent)
    assert made is not sent
    assert type(made) is type(sent)
    assert made.__getstate__() == sent.__getstate__()


@pytest.mark.parametrize("copied", COPIES)
def test_a_driver_copies_handlers_as_anything(copied: str) -> None:
    sent = Work(Processor(handler), "key", "string", {"topic": "t"})
    made = COPIES[copied](sent)
    assert (made.key, made.result, made.options) == ("key", "string", {"topic": "t"})
    assert made.processor.handler.parts == sent.processor.handler.parts


def test_the_connection_stays_the_workers_and_waits_as_before(connection: Connection) -> None:
    """A user's default for new sockets is no limit of Spark's."""
    before, sent = socket.getdefaulttimeout(), pickle.dumps(StreamReader(options()))
    socket.setdefaulttimeout(5)
    try:
        unpickle(sent, connection)
    finally:
        socket.setdefaulttimeout(before)
    descriptor = connection.worker.fileno()
    assert connection.worker.getblocking()
    with io.FileIO(descriptor, closefd=False) as raw:
        connection.spark.sendall(b"more")
        assert raw.read(4) == b"more"
    assert os.get_blocking(descriptor)


@pytest.mark.parametrize("name", ["a_users_module", "__main__"])
def test_elsewhere_nothing_changes(name: str, connection: Connection) -> None:
    """On a driver there is no such connection; a worker without a daemon runs as a script."""
    unpickle(pickle.dumps(StreamReader(options())), connection, name)
    changed = connection.worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert bool(changed) == (name == "__main__")


@pytest.mark.parametrize("family", [None, socket.AF_UNIX])
def test_other_connections_do_without(family: int | None) -> None:
    """A pair of streams that has no descriptor, as workers without a daemon have, and no TCP."""
    sent = pickle.dumps(StreamReader(options()))
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs, ours.makefile("rwb") as pair, ours.makefile("wb") as output:
        in_worker(lambda: pickle.loads(sent), pair if family is None else output)
        output.write(b"rows")
        output.flush()
        assert theirs.recv(4) == b"rows"


def test_a_system_without_it_keeps_the_rest(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kshare.worker_connection.this_system", lambda: POSIX)
    unpickle(pickle.dumps(StreamReader(options())), connection)
    assert connection.worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_output_is_found_in_workers_alone() -> None:
    output = io.BytesIO()
    assert worker_output() is None
    assert in_worker(worker_output, output) is output
    assert in_worker(worker_output, None) is None
    assert in_worker(worker_output, output, "a_users_module") is None


def test_each_batch_of_a_sink_is_acknowledged_once_it_is_taken(connection: Connection) -> None:
    """So what Spark sends next is not held back, though the task answers nothing."""

    def batches() -> Iterator[bytes]:
        while True:
            connection.send_task()
            yield b"a batch"

    taken: list[bytes] = []

    def take() -> None:
        for batch in acknowledging(batches()):
            taken.append(connection.second())
            assert batch == b"a batch"
            if len(taken) == 3:
                return

    socket.setdefaulttimeout(60)  # as a user's function may have done
    try:
        with connection.worker.makefile("wb") as output:
            in_worker(take, output)
    finally:
        socket.setdefaulttimeout(None)
    assert taken == [b"second"] * 3
    assert os.get_blocking(connection.worker.fileno())  # the worker's, as it was
    connection.worker.send(b"x")  # it is still open


def test_so_is_each_batch_for_handlers(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[bytes] = []

    def process(batches: Iterator[Any], *_: object, **__: object) -> None:
        taken.extend(connection.second() for _ in batches)

    def batches() -> Iterator[bytes]:
        for _ in range(3):
            connection.send_task()
            yield b"a batch"

    monkeypatch.setattr(work, "process_rows", process)
    handling = Work(Processor(handler), "key", None, None)
    with connection.worker.makefile("wb") as output:
        in_worker(lambda: handling.rows(batches()), output)
    assert taken == [b"second"] * 3


def test_outside_of_a_worker_and_without_tcp_batches_come_as_ever() -> None:
    assert [*acknowledging([1, 2])] == [1, 2]
    assert in_worker(lambda: [*acknowledging([1, 2])], io.BytesIO()) == [1, 2]
    one, other = socket.socketpair()
    with one, other, one.makefile("wb") as output:
        assert in_worker(lambda: [*acknowledging([1, 2])], output) == [1, 2]
        one.send(b"x")
