"""What members of a log's partition cost each other: each reads what all of them write.

Each member is a session of a group of its own, in this process, on one log partition. It claims a
partition and commits from time to time; nothing is read of the topic. Answers to fetches of the log,
and the processor time of a member.

``python -m bench.log_members SERVERS [MEMBERS SECONDS_BETWEEN_COMMITS]``
"""

import sys
import time
import uuid
from contextlib import ExitStack

from confluent_kafka.admin import AdminClient, NewTopic

from kshare.core.hashing import ALL_HASHES, WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, TopicPartition
from kshare.group.config.consumer_config import consumer_config
from kshare.group.log.tail import LogTail, Row
from kshare.group.session.session import GroupSession

_SECONDS = 15.0


def measure(servers: str, members: int, between: float) -> tuple[float, float]:
    """Answers and milliseconds of processor time, each a second and member."""
    name = f"log-members-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    as_made = {"cleanup.policy": "compact", "segment.bytes": "10485760"}
    topics = [NewTopic(name, 1), NewTopic(f"{name}.log", 1, config=as_made)]
    for future in admin.create_topics(topics).values():
        future.result(30)
    answers = [0]
    take = LogTail.take

    def counted(tail: LogTail) -> list[Row] | None:
        rows = take(tail)
        answers[0] += rows is not None
        return rows

    LogTail.take = counted  # type: ignore[method-assign,assignment]
    partition = TopicPartition(name, 0)
    try:
        with ExitStack() as stack:
            sessions = []
            for number in range(members):
                config = {
                    "bootstrap.servers": servers,
                    "group.id": f"{name}-{number}",
                    "individual.commit.topic": f"{name}.log",
                }
                session = GroupSession(consumer_config(config))
                stack.callback(session.close, 5.0)
                session.claim({partition: ALL_HASHES})
                sessions.append(session)
            while not all(session.started() for session in sessions):
                time.sleep(0.1)
            begun, cpu, asked = time.monotonic(), time.process_time(), answers[0]
            commits = 0
            while time.monotonic() < begun + _SECONDS:
                if between:
                    gap = Rectangle(OffsetRange(2 * commits + 1, 2 * commits + 2), WHOLE)
                    sessions[commits % members].commit({partition: [gap]}, 30.0)
                    commits += 1
                time.sleep(max(begun + commits * between / members - time.monotonic(), 0.0) or 0.05)
            seconds = (time.monotonic() - begun) * members
            spent = time.process_time() - cpu
            return (answers[0] - asked) / seconds, 1000 * spent / seconds
    finally:
        LogTail.take = take  # type: ignore[method-assign]
        for future in admin.delete_topics([name, f"{name}.log"]).values():
            future.result(30)


def main(servers: str, members: str = "20", between: str = "5") -> None:
    """Print what idle members cost, and members that commit."""
    for seconds in (0.0, float(between)):
        answers, cpu_ms = measure(servers, int(members), seconds)
        what = f"a commit each {seconds:g} s" if seconds else "idle"
        print(
            f"{members} members, {what}: each {answers:.1f} answers and {cpu_ms:.1f} ms of CPU a s"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
