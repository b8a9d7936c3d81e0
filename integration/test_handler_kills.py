"""Processors that are killed, stopped and joined by others, with the default commit interval.

So what was handled lately is not committed yet, as it is in production.
"""

import signal
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

from integration.kafka import KafkaBroker
from integration.lines import whole_lines
from integration.members import eventually
from integration.processes import PythonProcess
from integration.test_processing import read
from kshare.group.config.consumer_config import consumer_config
from kshare.group.log.retry_log import RetryLog
from kshare.group.log.topic import log_table

BAD = 5
RECORDS = 12


class Begun(NamedTuple):
    """A call that a handler has begun."""

    key: str
    offset: int
    attempt: int
    pid: int
    seconds: float


def begun(file: Path) -> list[Begun]:
    lines = [line.split() for line in whole_lines(file)]
    return [
        Begun(key, int(at), int(attempt), int(pid), float(seconds))
        for key, at, attempt, pid, seconds in lines
    ]


def handler(broker: KafkaBroker, topic: str, letters: str, file: Path, way: str) -> PythonProcess:
    arguments = [broker.bootstrap_servers, topic, letters, str(file), way]
    return PythonProcess("integration.handler_kills_process", arguments)


def has_mark(broker: KafkaBroker, topic: str) -> bool:
    config = consumer_config({"bootstrap.servers": broker.bootstrap_servers, "group.id": topic})
    log = RetryLog(log_table(config.kafka, config.log_topic, topic), topic)
    try:
        return bool(log.read().sequences)
    finally:
        log.close()


@pytest.mark.parametrize("moment", ["mark", "letter"])
def test_only_the_record_that_failed_and_those_behind_it_become_letters(
    broker: KafkaBroker, topic: str, tmp_path: Path, moment: str
) -> None:
    """Killed as soon as its mark, or its letter, is written: what lies before is not committed."""
    letters, file = f"{topic}-dlq", tmp_path / "begun"
    broker.create_topic(letters)
    file.touch()
    broker.produce(topic, [("k", "bad" if at == BAD else "good") for at in range(RECORDS)])
    first = handler(broker, topic, letters, file, "sequence")
    if moment == "mark":
        eventually(lambda: has_mark(broker, topic))
    else:
        eventually(lambda: broker.latest(letters) > 0)
    first.kill()
    first.wait()
    assert [each.offset for each in begun(file)] == list(range(BAD + 1))
    second = handler(broker, topic, letters, file, "sequence")
    broker.produce(topic, [("other", "good")])
    wanted = list(range(BAD, RECORDS))
    eventually(lambda: {at for _, at in read(broker, letters)} >= set(wanted))
    eventually(lambda: any(each.key == "other" for each in begun(file)))  # it has what is before
    second.terminate()
    assert second.wait() == 0
    found = [at for _, at in read(broker, letters)]
    assert list(dict.fromkeys(found)) == wanted  # in order, and none of those before
    again = [each.offset for each in begun(file) if each.pid == second.pid and each.key == "k"]
    assert again == list(range(BAD))[BAD - len(again) :]  # what was not committed, and no more


def test_no_call_that_was_begun_before_a_long_stop_runs_after_others_have_its_record(
    broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """Stopped amid a turn of its loop, for longer than the session, while another goes on."""
    letters, file, keys = f"{topic}-dlq", tmp_path / "begun", 200
    broker.create_topic(letters)
    file.touch()
    broker.produce(topic, [(f"k{at % keys}", "good") for at in range(4 * keys)])
    stopped = handler(broker, topic, letters, file, "blocks")
    eventually(lambda: len(begun(file)) > 20)
    stopped.send_signal(signal.SIGSTOP)
    try:
        until_then = {each.offset for each in begun(file)}
        assert len(until_then) < 4 * keys
        other = handler(broker, topic, letters, file, "blocks")
        eventually(lambda: {each.offset for each in begun(file)} == set(range(4 * keys)))
        went_on = time.monotonic()
    finally:
        stopped.send_signal(signal.SIGCONT)
    broker.produce(topic, [(f"k{at % keys}", "good") for at in range(keys)])
    total = 5 * keys
    eventually(lambda: {each.offset for each in begun(file)} == set(range(total)))
    for process in (stopped, other):
        process.terminate()
        assert process.wait() == 0
    by_other = {each.offset: each.seconds for each in begun(file) if each.pid == other.pid}
    late = [
        each.offset
        for each in begun(file)
        if each.pid == stopped.pid
        and each.seconds > went_on
        and by_other.get(each.offset, each.seconds) < each.seconds
    ]
    assert late == []
    order = defaultdict[str, list[int]](list)
    for each in begun(file):
        if each.pid == other.pid:
            order[each.key].append(each.offset)
    assert all(offsets == sorted(offsets) for offsets in order.values())


def test_members_that_come_and_go_while_handlers_fail_call_none_more_often_than_asked(
    broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """Two attempts each, whoever makes them; no fault but that key hashes are handed over."""
    letters, file, records = f"{topic}-dlq", tmp_path / "begun", 150
    broker.create_topic(letters)
    file.touch()
    broker.produce(topic, [(f"k{at}", "v") for at in range(records)])
    processes = [handler(broker, topic, letters, file, "fails")]
    for at in range(1, 3):
        eventually(lambda count=at: len(begun(file)) >= 40 * count)  # type: ignore[misc]
        processes.append(handler(broker, topic, letters, file, "fails"))
    eventually(lambda: len({each.pid for each in begun(file)}) >= 2)
    processes[0].terminate()
    assert processes[0].wait() == 0
    eventually(lambda: len(set(read(broker, letters))) == records)
    for process in processes[1:]:
        process.terminate()
        assert process.wait() == 0
    calls = defaultdict[int, list[Begun]](list)
    for each in begun(file):
        calls[each.offset].append(each)
    wrong = {at: of for at, of in calls.items() if [each.attempt for each in of] != [1, 2]}
    assert wrong == {}
    assert len(calls) == records
