"""Kafka into Arrow, beside kcat and kafkarrow: ``python -m bench.arrow_jobs SERVERS TOPIC``.

kcat is librdkafka's own consumer in C, and throws the records away; it is measured where it is
installed (Debian's package ``kcat``). kafkarrow reads into Arrow in Rust, by librdkafka; pip
installs it once, in ``.cache``. With an address and a topic, this module is the job of kafkarrow,
in a process of its own.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the job imports what it needs, and no more
    from bench.rows import Row

_KCAT = ("kcat", "kafkacat")
_FETCH = {
    "queued.max.messages.kbytes": str(1 << 17),
    "queued.min.messages": "1000000",
    "fetch.message.max.bytes": str(4 << 20),
}
"""The settings of librdkafka that make confluent-kafka fastest."""
_NEWER = {"fetch.queue.backoff.ms": "10"}
"""One that the librdkafka of Debian 12 does not know."""
_PACKAGE = "kafkarrow==0.1.1"


def kafkarrow(servers: str, topic: str) -> dict[str, float]:
    """Read a topic of one partition into Arrow, to its end."""
    from kafkarrow import ConsumerManager, SourceTopic

    from kshare.testing.records import watermarks

    end = watermarks(servers, topic, 0)[1]
    config: dict[str, Any] = {"bootstrap.servers": servers, **_FETCH, **_NEWER}
    began, cpu, count = time.perf_counter(), time.process_time(), 0
    manager = ConsumerManager(config, [SourceTopic.from_earliest(topic)])
    while count < end:
        count += manager.poll(1_000).num_rows
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}


def kcat(program: str, servers: str, topic: str, records: int) -> float:
    """Seconds in which kcat reads all records and writes their values to nowhere."""
    given = [part for name, value in _FETCH.items() for part in ("-X", f"{name}={value}")]
    command = [program, "-C", "-q", "-b", servers, "-t", topic, "-p", "0", "-o", "beginning"]
    began = time.perf_counter()
    subprocess.run([*command, "-c", str(records), *given], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def rows(servers: str, runs: int) -> "list[Row]":
    """All four in turn: each of ours against each peer."""
    from bench import data
    from bench.rows import all_interleaved, speed_row
    from integration.driver_pandas import folder_with

    data.make_topics(servers)
    path = os.pathsep.join(
        [os.environ.get("PYTHONPATH", ""), str(folder_with("kafkarrow", [_PACKAGE]))]
    )

    def seconds(module: str, *more: str) -> Callable[[], float]:
        command = [sys.executable, "-m", module, *more]
        environment = {**os.environ, "PYTHONPATH": path}

        def job() -> float:
            done = subprocess.run(
                command, check=True, capture_output=True, text=True, env=environment
            )
            measured: dict[str, float] = json.loads(done.stdout)
            return measured["seconds"]

        return job

    jobs = {
        "kafkarrow": seconds("bench.arrow_jobs", servers, data.MAIN),
        "read_slice": seconds("bench.wire_jobs", "kshare", servers, data.MAIN, "1"),
        "consume_batch": seconds("bench.group_jobs", "batches", servers, data.MAIN),
    }
    targets = {"kafkarrow": 2.5}
    program = next((found for name in _KCAT if (found := shutil.which(name))), None)
    if program is None:
        print("kcat is not installed, and not measured (Debian: apt-get install kcat)", flush=True)
    else:
        jobs["kcat"] = lambda: kcat(program, servers, data.MAIN, data.MAIN_RECORDS)
        targets["kcat"] = 1.2
    times = all_interleaved(jobs, runs)
    return [
        speed_row(f"{ours} / {peer}", data.MAIN_RECORDS, (times[peer], times[ours]), target)
        for peer, target in targets.items()
        for ours in ("read_slice", "consume_batch")
    ]


if __name__ == "__main__":
    print(json.dumps(kafkarrow(*sys.argv[1:])))
