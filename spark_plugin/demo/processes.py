"""Common parts of the demos of consumers: a temporary topic, and processes to wait for."""

import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from kshare.cluster.topics import INDIVIDUAL_COMMITS_TOPIC
from kshare.errors import KshareError
from kshare.testing import FakeCluster

__all__ = ["stop_process", "temporary_topic", "wait_until"]

_TIMEOUT_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.1


def wait_until(is_done: Callable[[], bool], deadline: float, what: str) -> None:
    """Wait until something is done.

    Args:
        is_done: Whether it is.
        deadline: When to give up, as of the monotonic clock.
        what: What the processes have to do, for the error: such as "read all records".

    Raises:
        KshareError: They did not do it in time.
    """
    while not is_done():
        if time.monotonic() > deadline:
            raise KshareError(f"the processes did not {what} in time; --seconds gives more")
        time.sleep(_LOOK_SECONDS)


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """End a process: it is asked to, and killed if it does not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def temporary_topic(servers: str | None, also: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """A topic of one partition, which is deleted at the end.

    Args:
        servers: Bootstrap servers of a real cluster; None for an embedded one.
        also: Endings of more topics: each is named as the first one, with that ending.

    Yields:
        Bootstrap servers, and the topic's name.
    """
    name = f"kshare-demo-{uuid.uuid4().hex[:12]}"
    names = [name, *(f"{name}{ending}" for ending in also)]
    if servers is None:
        with FakeCluster(
            topics={**dict.fromkeys(names, 1), INDIVIDUAL_COMMITS_TOPIC: 1}
        ) as cluster:
            yield cluster.bootstrap_servers, name
        return
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    _wait_for(admin.create_topics([NewTopic(each, 1) for each in names]))
    try:
        yield servers, name
    finally:
        _wait_for(admin.delete_topics(names))


def _wait_for(futures: Mapping[str, Future[None]]) -> None:
    for future in futures.values():
        future.result(_TIMEOUT_SECONDS)
