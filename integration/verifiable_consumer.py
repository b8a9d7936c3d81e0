"""The consumer that Kafka's system tests (kafkatest) want to drive.

``python -m integration.verifiable_consumer --bootstrap-server HOST:PORT --topic T --group-id G``

It takes the options of Kafka's own ``org.apache.kafka.tools.VerifiableConsumer``, and prints its
events to standard output, one JSON object a line; all else goes to standard error. What a partition
says of ``hashes`` is kshare's addition: the key hashes that are meant, if it is not all of it.

Guarantees: as Kafka's: what a call returned is printed and then committed, before partitions are
revoked and before the end; each rebalance ends with ``partitions_assigned``, if only of nothing.
That is printed when what was gained is claimed: no former owner returns records of it any more.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from kshare.cli.connection import properties_of
from kshare.cli.output import complain
from kshare.core.hashing import NO_HASHES, HashRange, KeyRanges
from kshare.core.progress import TopicPartition
from kshare.errors import KshareError
from kshare.group import KeySharedConsumer, Message
from kshare.group.assignments import parse_assignment
from kshare.group.protocol.membership.holdings import assigned_minus
from kshare.group.protocol.membership.subscription import Assigned

__all__ = ["main"]

_RECORDS: Final = 500
"""Records of one call; as Java's ``max.poll.records``."""
_WAIT_SECONDS: Final = 0.2
_PAUSE_SECONDS: Final = 0.1
"""Between calls that fail."""

_Shown: TypeAlias = Mapping[TopicPartition, tuple[HashRange, ...]]
"""Key hashes as the consumer says them: an empty tuple is the whole partition."""


def main(*argv: str) -> int:
    """Run the command, and return its exit code."""
    arguments = _arguments(argv)
    try:
        consumer = KeySharedConsumer(_config(arguments))
    except KshareError as error:
        complain(f"verifiable_consumer: {error}")
        return 1
    verifiable = _VerifiableConsumer(consumer, arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: verifiable.end())
    verifiable.run()
    return int(verifiable.has_failed)


def _config(arguments: argparse.Namespace) -> dict[str, Any]:
    """The consumer's configuration; options win over the file, as in Kafka's tool."""
    file = arguments.consumer_config
    given: dict[str, Any] = {} if file is None else dict(properties_of(file, "--consumer.config"))
    given |= {
        "bootstrap.servers": arguments.bootstrap_server,
        "group.id": arguments.group_id,
        "enable.auto.commit": arguments.enable_autocommit,
        "auto.offset.reset": arguments.reset_policy,
        "session.timeout.ms": arguments.session_timeout,
    }
    given.setdefault("heartbeat.interval.ms", min(3_000, arguments.session_timeout // 3))
    if arguments.group_instance_id not in {None, "None"}:  # kafkatest says None for Kafka 2.3
        given["group.instance.id"] = arguments.group_instance_id
    return given


class _VerifiableConsumer:
    """Receives, commits, and prints.

    Args:
        consumer: Receives.
        arguments: Those of the command.

    Attributes:
        has_failed: Whether a fault has ended it, or the last commit has failed.
    """

    def __init__(self, consumer: KeySharedConsumer, arguments: argparse.Namespace) -> None:
        self.has_failed = False
        self._consumer = consumer
        self._arguments = arguments
        self._left: int | None = arguments.max_messages if arguments.max_messages >= 0 else None
        self._is_ending = False
        self._told: tuple[int, object] = (0, None)  # the last rebalance
        self._gained: dict[TopicPartition, KeyRanges] = {}  # in place, not printed
        self._is_revoked = False  # printed, and no assignment since
        self._fault: Exception | None = None

    @property
    def _is_eager(self) -> bool:
        """True if each rebalance assigns all partitions again: kafkatest counts on it."""
        return (
            self._arguments.group_protocol.lower() != "consumer"
            and "Cooperative" not in self._arguments.assignment_strategy
        )

    def end(self) -> None:
        """Let it end, from a signal handler."""
        self._is_ending = True

    def run(self) -> None:
        """Receive until the end."""
        _print("startup_complete")
        try:
            self._consumer.subscribe(
                [self._arguments.topic],
                on_revoked=self._given_up,
                on_lost=self._lost,
                on_started=self._started,
            )
            while not self._is_ending and self._left != 0 and self._receive():
                pass
            # close() counts not what the last call returned; and what was read of other keys since
            # the last commit is passed over for good.
            error, _ = self._commit()
            if error is not None:
                self._failed(f"the last commit: {error}")
        except KshareError as error:
            self._failed(str(error))
        finally:
            self._consumer.close()
            _print("shutdown_complete")

    def _failed(self, why: str) -> None:
        self.has_failed = True
        complain(f"verifiable_consumer: {why}")

    def _receive(self) -> bool:
        """Receive once, and commit; whether to go on."""
        count = _RECORDS if self._left is None else min(_RECORDS, self._left)
        try:
            messages = self._consumer.consume(count, _WAIT_SECONDS)
        except KshareError as error:
            complain(f"verifiable_consumer: {type(error).__name__}: {error}")
            is_lasting = error is self._fault  # what has ended a membership is raised each time
            self._fault = error
            self.has_failed |= is_lasting
            time.sleep(_PAUSE_SECONDS)
            return not is_lasting
        self._tell_assigned(has_records=bool(messages))
        if messages:
            self._consumed(messages)
            if not self._arguments.enable_autocommit:
                self._committed()
        return True

    def _tell_assigned(self, *, has_records: bool) -> None:
        """Print what is assigned, once a rebalance is over and all of it is claimed.

        Records that come before that come behind an event of what is claimed already: kafkatest
        counts on it.
        """
        subscriber = self._consumer.receiver.subscriber
        if subscriber is None:
            return
        is_over = not subscriber.has_work and not subscriber.starting
        is_due = is_over and (bool(self._gained) or self._rebalance() != self._told)
        if is_due or (has_records and (self._gained or self._is_revoked)):
            self._told, self._is_revoked = self._rebalance(), False
            gained: Assigned = self._gained
            self._gained = {}
            if self._is_eager:
                gained = assigned_minus(_owned(self._consumer.assignment()), subscriber.starting)
            _print("partitions_assigned", partitions=_partitions(gained))

    def _rebalance(self) -> tuple[int, object]:
        """Identity of the last rebalance; that of the last one printed while another is on."""
        subscriber = self._consumer.receiver.subscriber
        generation = None if subscriber is None else subscriber.member.generation
        if generation is None:
            return self._told
        return self._consumer.metrics().rebalances, generation

    def _started(self, gained: _Shown) -> None:
        for partition, hashes in _owned(gained).items():
            self._gained[partition] = self._gained.get(partition, NO_HASHES) | hashes

    def _lost(self, changed: _Shown) -> None:
        # Kafka's tool has no event of that name: its listener is told that they are revoked.
        self._given_up(changed, lost=True)

    def _given_up(self, changed: _Shown, **fields: Any) -> None:
        gone = _owned(changed)
        self._gained = dict(assigned_minus(self._gained, gone))
        self._is_revoked = True
        _print("partitions_revoked", partitions=_partitions(gone), **fields)

    def _consumed(self, messages: Sequence[Message]) -> None:
        by_partition: dict[TopicPartition, list[int]] = {}
        for message in messages:
            by_partition.setdefault(message.topic_partition, []).append(message.offset())
            if self._arguments.verbose:
                _print(
                    "record_data",
                    topic=message.topic(),
                    partition=message.partition(),
                    offset=message.offset(),
                    key=_text(message.key()),
                    value=_text(message.value()),
                )
        if self._left is not None:
            self._left -= len(messages)
        summaries = [
            {**_place(at), "count": len(each), "minOffset": min(each), "maxOffset": max(each)}
            for at, each in by_partition.items()
        ]
        _print("records_consumed", count=len(messages), partitions=summaries)

    def _committed(self) -> None:
        error, stable = self._commit()
        offsets = [{**_place(at), "offset": offset} for at, offset in stable.items()]
        failed = {} if error is None else {"error": error}
        _print("offsets_committed", offsets=offsets, success=error is None, **failed)

    def _commit(self) -> tuple[str | None, Mapping[TopicPartition, int]]:
        """Commit; the error, and the stable offsets."""
        try:
            return None, self._consumer.commit() or {}
        except KshareError as error:
            return str(error), {}


def _print(name: str, **fields: Any) -> None:
    event = {"timestamp": time.time_ns() // 1_000_000, "name": name, **fields}
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def _place(at: TopicPartition) -> dict[str, Any]:
    return {"topic": at.topic, "partition": at.partition}


def _owned(shown: _Shown) -> Assigned:
    return parse_assignment(shown, individual=True)[0]


def _partitions(changed: Assigned) -> list[dict[str, Any]]:
    return [
        {**_place(at), **({} if hashes.is_all else {"hashes": hashes.pairs})}
        for at, hashes in sorted(changed.items())
    ]


def _text(given: bytes | None) -> str | None:
    return None if given is None else given.decode("utf-8", "backslashreplace")


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The options are those of Kafka's own VerifiableConsumer."""
    consumer = argparse.ArgumentParser(
        prog="python -m integration.verifiable_consumer",
        description="Consume a topic as a member of a group, and print what happens as JSON lines. "
        "SIGTERM and SIGINT end it.",
    )
    consumer.add_argument(
        "--bootstrap-server",
        "--broker-list",
        required=True,
        metavar="HOST:PORT,...",
        help="one broker of the cluster, or more",
    )
    consumer.add_argument("--topic", required=True, help="the topic to consume")
    consumer.add_argument("--group-id", required=True, help="id of the group")
    consumer.add_argument("--group-instance-id", metavar="ID", help="id of a static member")
    consumer.add_argument(
        "--max-messages",
        type=int,
        default=-1,
        metavar="N",
        help="end after so many records; -1: when it is asked to",
    )
    consumer.add_argument(
        "--session-timeout", type=int, default=30_000, metavar="MS", help="session.timeout.ms"
    )
    consumer.add_argument("--verbose", action="store_true", help="print each record, too")
    consumer.add_argument(
        "--enable-autocommit",
        action="store_true",
        help="commit from time to time, instead of after each call",
    )
    consumer.add_argument(
        "--reset-policy",
        choices=("earliest", "latest", "none"),
        default="earliest",
        help="auto.offset.reset",
    )
    consumer.add_argument(
        "--assignment-strategy",
        default="org.apache.kafka.clients.consumer.RangeAssignor",
        metavar="CLASS",
        help="no assignor, but how rebalances are told: all that is assigned now; with "
        "CooperativeStickyAssignor, what was gained",
    )
    consumer.add_argument(
        "--group-protocol",
        default="classic",
        metavar="NAME",
        help="kshare has one of its own; with consumer, what was gained is told",
    )
    consumer.add_argument("--group-remote-assignor", metavar="NAME", help="without effect")
    consumer.add_argument(
        "--consumer.config",
        dest="consumer_config",
        type=Path,
        metavar="FILE",
        help="properties of the consumer; allow.individual.commit=false for whole partitions",
    )
    return consumer.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
