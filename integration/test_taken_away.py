"""A query without all that makes kshare faster: nothing is lost, and keys stay in order.

As on serverless runtimes: Spark runs a plain ``python3`` and its own daemon, the source comes by
``spark.dataSource.register`` alone, no planner can listen, and no task can share what it fetches.
"""

import os
import sys
from pathlib import Path

import pytest

from integration.kafka import KafkaBroker
from integration.runs import Driver, StreamingRun
from kshare.testing import Record

# Python imports this module at its start, in each of Spark's processes.
TAKE_AWAY = """
import errno, os, socket, sys

def note(what):
    with open({log!r}, "a") as log:
        log.write(what + "\\\\n")

def listen(self, *backlog):
    if sys._getframe(1).f_globals.get("__name__", "").startswith("kshare."):
        note("port")
        raise OSError(errno.EACCES, "taken away")
    return super(socket.socket, self).listen(*backlog)

socket.socket.listen = listen
open_file = os.open

def open_without_room(path, flags, *more, **named):
    if flags & os.O_TMPFILE == os.O_TMPFILE:
        note("room")
        raise OSError(errno.EROFS, "taken away")
    return open_file(path, flags, *more, **named)

os.open = open_without_room
if any("daemon" in word for word in sys.orig_argv):
    note("daemon " + " ".join(sys.orig_argv[1:3]))
"""


@pytest.mark.long
def test_nothing_is_lost(
    broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, module = tmp_path / "taken", tmp_path / "modules" / "sitecustomize.py"
    module.parent.mkdir()
    module.write_text(TAKE_AWAY.replace("{log!r}", repr(str(log))).replace("\\\\n", "\\n"))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin"]))
    topic = broker.create_topic(partitions=2)
    keys = [b"key-%d" % number for number in range(8)]
    records = [Record(keys[i % 8] if i % 4 == 0 else keys[0], b"%d" % i) for i in range(640)]
    for partition in (0, 1):
        broker.produce(topic, records, partition=partition)
    with Driver(tmp_path, bare=module.parent) as driver:
        run = StreamingRun(broker.bootstrap_servers, topic, tmp_path, driver)
        run.start(keyRanges="3", targetTaskDuration="2s", maxRecordsPerTask="120")
    report = run.judge({0: (0, 640), 1: (0, 640)})
    assert report.ok, str(report)
    taken = set(log.read_text().splitlines())
    assert {"port", "room"} <= taken
    assert "daemon -m pyspark.daemon" in taken
    assert not any("spark_plugin" in line for line in taken)
