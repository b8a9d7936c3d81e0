"""The examples of processors, as files that users copy: run against a mock cluster."""

import os
import runpy
import signal
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kshare.kafka.topics import INDIVIDUAL_COMMITS_TOPIC
from kshare.testing import FakeCluster
from kshare.testing.records import watermarks

EXAMPLES = Path(__file__).parents[2] / "examples"
RECORDS = [(b"customer-%d" % (n % 7), b"%d" % n) for n in range(200)]
REFUSED, LATER = b"13", b"20"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, "orders.dlq": 1, INDIVIDUAL_COMMITS_TOPIC: 1}) as running:
        running.produce("orders", RECORDS)
        yield running


def run_until(is_done: Callable[[], bool], name: str, *arguments: str) -> None:
    """Run an example, and end it as a user's process manager would."""
    over = threading.Event()

    def end() -> None:
        deadline = time.monotonic() + 60
        while not is_done() and time.monotonic() < deadline and not over.wait(0.02):
            pass
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    watch = threading.Thread(target=end)
    main = runpy.run_path(str(EXAMPLES / name))["main"]
    kept = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # should it come before it listens
    watch.start()
    try:
        main(*arguments)
    finally:
        over.set()
        watch.join()
        signal.signal(signal.SIGTERM, kept)


@contextmanager
def web(posted: list[tuple[str, bytes]]) -> Iterator[str]:
    """A server that refuses one order for good, and wants another one later."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posted.append((self.headers["Idempotency-Key"], body))
            is_first = sum(each == body for _, each in posted) == 1
            status = 422 if body == REFUSED else 429 if body == LATER and is_first else 200
            self.send_response(status)
            if status == 429:
                self.send_header("Retry-After", "0.2")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_each_record_is_posted_in_the_order_of_its_key(cluster: FakeCluster) -> None:
    posted = list[tuple[str, bytes]]()

    def is_done() -> bool:
        return len(posted) > len(RECORDS) and watermarks(servers, "orders.dlq")[1] == 1

    servers = cluster.bootstrap_servers
    with web(posted) as url:
        run_until(is_done, "handlers_http.py", servers, "orders", url)
    numbers = [int(body) for _, body in posted]
    assert sorted(numbers) == sorted([*range(len(RECORDS)), int(LATER)])  # asked for once more
    by_key = defaultdict[int, list[int]](list)
    for number in numbers:
        by_key[number % 7].append(number)
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert ("orders-0-20", LATER) in posted


def test_the_database_has_the_newest_record_of_each_key(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    file = tmp_path / "customers.db"
    with closing(sqlite3.connect(file)) as database:  # as a run before has left it
        database.execute("CREATE TABLE customers (customer PRIMARY KEY, value, partition, offset)")
        database.execute("INSERT INTO customers VALUES (?, 'later', 0, 500)", RECORDS[0][:1])
        database.commit()

    def rows() -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(file)) as database:
            return database.execute("SELECT * FROM customers ORDER BY offset").fetchall()

    def is_done() -> bool:
        return len(RECORDS) - 1 in {row[3] for row in rows()}

    run_until(is_done, "handlers_database.py", cluster.bootstrap_servers, "orders", str(file))
    newest: dict[bytes, tuple[Any, ...]]
    newest = {key: (key, value, 0, at) for at, (key, value) in enumerate(RECORDS)}
    newest[RECORDS[0][0]] = (RECORDS[0][0], "later", 0, 500)  # a record that comes again is older
    assert rows() == sorted(newest.values(), key=lambda row: row[3])
