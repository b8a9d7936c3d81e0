"""What drives ``integration.verifiable_consumer``, as Kafka's system tests (kafkatest) do.

A :class:`Service` is some consumers of a group, each a node that is started again and again; it
folds what they print, with the assertions of kafkatest. A :class:`Feed` writes records meanwhile.
At the end the judge of :mod:`integration.history` reads all that was printed.
"""

import json
import signal
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Message, Producer

from integration.history import check_history
from integration.history.history_file import HistoryReader
from integration.lines import whole_lines
from integration.members import eventually
from integration.processes import PythonProcess
from integration.topics import Topics
from kshare.core.hashing import key_hash
from kshare.core.progress import TopicPartition
from kshare.group.tools.offsets import list_offsets

__all__ = ["COOPERATIVE", "Feed", "Node", "Service"]

COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
_RATE = 300
"""Records in a second."""


class Feed:
    """A producer in a thread: records of 97 keys, and what became of each."""

    def __init__(self, servers: str, topic: str, partitions: int = 1) -> None:
        self._producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5}
        )
        self._topic, self._partitions = topic, partitions
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Write no more; all that was written is known."""
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.05):
            for _ in range(_RATE // 20):
                number += 1
                key, partition = f"key-{number * number % 97}", number % self._partitions
                self._producer.produce(
                    self._topic, f"{number}", key, partition, on_delivery=self._done
                )
            self._producer.poll(0)

    def _done(self, error: object, message: Message) -> None:
        assert error is None, error
        key = (message.key() or b"").decode()
        where = {"topic": message.topic(), "partition": message.partition()}
        self.sent.append({"type": "sent", **where, "offset": message.offset(), "key": key})


@dataclass
class Node:
    """A consumer, and those before it: what they have printed, folded.

    Attributes:
        name: Its name.
        runs: The files of its processes.
        position: The next offset of each of its partitions, since the last rebalance.
    """

    name: str
    checks_offsets: bool
    process: PythonProcess | None = None
    runs: list[Path] = field(default_factory=list)
    read: int = 0  # lines of the last run
    state: str = "dead"
    assignment: set[int] = field(default_factory=set)
    position: dict[int, int] = field(default_factory=dict)
    assigned: int = 0
    revoked: int = 0

    def events(self) -> list[dict[str, Any]]:
        """What it has printed since it was last asked."""
        if not self.runs:
            return []
        lines = whole_lines(self.runs[-1])
        fresh, self.read = lines[self.read :], len(lines)
        return [json.loads(line) for line in fresh]

    def fold(self, event: Mapping[str, Any]) -> None:
        """Take an event; as kafkatest's handler of consumers that rebalance cooperatively."""
        places = {each["partition"] for each in event.get("partitions", ())}
        match event["name"]:
            case "startup_complete":
                self.state = "started"
            case "shutdown_complete":
                self.dead()
            case "partitions_assigned":
                self.state, self.assigned = "joined", self.assigned + 1
                self.assignment |= places
            case "partitions_revoked":
                self.state, self.revoked = "rebalancing", self.revoked + 1
                self.position.clear()
                if not any("hashes" in each for each in event["partitions"]):
                    self.assignment -= places
            case "records_consumed":
                assert self.state == "joined", f"{self.name} has consumed, and is {self.state}"
                for each in event["partitions"]:
                    self._consumed(each["partition"], each["minOffset"], each["maxOffset"])

    def dead(self) -> None:
        """Its process has ended."""
        self.state = "dead"
        self.assignment, self.position = set(), {}

    def _consumed(self, partition: int, first: int, last: int) -> None:
        assert partition in self.assignment, f"{self.name} has consumed of {partition}"
        expected = self.position.get(partition, first)
        if self.checks_offsets:
            assert first == expected, f"{self.name} was at {expected}, and has consumed {first}"
        self.position[partition] = last + 1


class Service:
    """Verifiable consumers of one group.

    Args:
        broker: Where the topic is.
        topic: The topic.
        folder: Where they print.
        count: How many.
        is_shared: Whether they share partitions by key; else each has whole ones, as Kafka's.
        is_static: Whether they have a ``group.instance.id``.
        auto_commit: As ``enable.auto.commit``.
        session_ms: As ``session.timeout.ms``.
        name: What its nodes' names begin with: one letter.
    """

    def __init__(
        self,
        broker: Topics,
        topic: str,
        folder: Path,
        count: int = 3,
        *,
        is_shared: bool = False,
        is_static: bool = False,
        auto_commit: bool = False,
        session_ms: int = 6_000,
        name: str = "c",
    ) -> None:
        self._broker, self.topic, self._folder = broker, topic, folder
        self.is_shared, self.commits = is_shared, not auto_commit
        self.nodes = [Node(f"{name}{number}", not is_shared) for number in range(count)]
        self._options = ["--verbose", "--session-timeout", f"{session_ms}"]
        self._options += ["--assignment-strategy", COOPERATIVE]
        self._options += ["--enable-autocommit"] if auto_commit else []
        self._is_static = is_static
        self.positions: dict[int, int] = {}
        self.committed: dict[int, int] = {}
        self.total = 0
        properties = f"allow.individual.commit={str(is_shared).lower()}\nclaim.timeout.ms=1000\n"
        properties += "heartbeat.interval.ms=500\nauto.commit.interval.ms=200\n"
        self._config = folder / f"{name}.properties"
        self._config.write_text(properties)

    def feed(self) -> Feed:
        """A producer for its topic."""
        return Feed(self._broker.bootstrap_servers, self.topic)

    def conflicting(self, count: int) -> "Service":
        """Some consumers more, with the ids of its first ones."""
        made = Service(
            self._broker, self.topic, self._folder, count,
            is_shared=self.is_shared, is_static=self._is_static, name="x",
        )  # fmt: skip
        made._options = self._options
        return made

    # -- processes ------------------------------------------------------------------------------

    def start(self, nodes: Iterable[Node] | None = None) -> None:
        for node in self.nodes if nodes is None else nodes:
            self.look()
            file = self._folder / f"{node.name}-{len(node.runs):02}"
            file.touch()
            errors = file.with_suffix(".err")
            errors.touch()
            arguments = [
                "--bootstrap-server",
                self._broker.bootstrap_servers,
                "--topic",
                self.topic,
            ]
            arguments += ["--topic", self.topic, "--group-id", self.topic, *self._options]
            arguments += ["--consumer.config", str(self._config)]
            if self._is_static:
                arguments += ["--group-instance-id", f"instance-{node.name[1:]}"]
            node.runs.append(file)
            node.read = 0
            node.process = PythonProcess(
                "integration.verifiable_consumer", arguments, stdout=file, stderr=errors
            )

    def stop(self, nodes: Iterable[Node] | None = None, *, is_clean: bool = True) -> None:
        """End processes, and wait until they have ended."""
        chosen = [each for each in (self.nodes if nodes is None else nodes) if each.process]
        for node in chosen:
            assert node.process is not None
            node.process.send_signal(signal.SIGTERM if is_clean else signal.SIGKILL)
        for node in chosen:
            assert node.process is not None
            node.process.wait(120)
        self.look()
        for node in chosen:
            assert not is_clean or node.state == "dead", f"{node.name} is {node.state}"
            node.dead()

    def close(self) -> None:
        for node in self.nodes:
            if node.process is not None:
                node.process.kill()
                node.process.wait()
            for run in node.runs:
                print(f"-- {run.name}:\n{run.with_suffix('.err').read_text()[-2000:]}")

    # -- what they have printed -----------------------------------------------------------------

    def look(self) -> None:
        """Take what was printed meanwhile."""
        events = [(event, node) for node in self.nodes for event in node.events()]
        for event, node in sorted(events, key=lambda each: each[0]["timestamp"]):
            node.fold(event)
            if event["name"] == "records_consumed":
                self.total += event["count"]
                for each in event["partitions"]:
                    at = each["partition"]
                    self.positions[at] = max(self.positions.get(at, 0), each["maxOffset"] + 1)
            if event["name"] == "offsets_committed" and event["success"]:
                for each in event["offsets"]:
                    self.committed[each["partition"]] = each["offset"]

    def of(self, state: str) -> list[Node]:
        """The nodes in a state."""
        self.look()
        return [node for node in self.nodes if node.state == state]

    def owner(self, partition: int = 0) -> Node:
        self.look()
        return next(each for each in self.nodes if partition in each.assignment)

    def assignments(self) -> list[int]:
        """The partitions of all, once for each node that has them."""
        self.look()
        return sorted(each for node in self.nodes for each in node.assignment)

    def await_members(self, count: int, seconds: float = 60) -> None:
        eventually(lambda: len(self.of("joined")) == count, seconds)

    def await_stable(self) -> None:
        """The coordinator says that the group is stable, and the partition has an owner."""
        admin = self._broker.admin

        def is_stable() -> bool:
            found = admin.describe_consumer_groups([self.topic])[self.topic].result(30)
            return found.state.name == "STABLE" and bool(self.assignments())

        eventually(is_stable)

    def await_consumed(self, count: int = 1) -> None:
        self.look()
        before = self.total

        def have_more() -> bool:
            self.look()
            return self.total >= before + count

        eventually(have_more)

    def rebalances(self) -> int:
        self.look()
        return max(node.assigned for node in self.nodes)

    def revokes_of(self, nodes: Sequence[Node]) -> int:
        self.look()
        return max(node.revoked for node in nodes)

    def uncommitted(self, feed: Feed) -> list[int]:
        """The offsets of records that the group has not committed."""
        found = list_offsets(self.topic, {"bootstrap.servers": self._broker.bootstrap_servers})
        missing = []
        for sent in feed.sent:
            offset, key = sent["offset"], sent["key"].encode()
            said = found[TopicPartition(self.topic, sent["partition"])]
            if offset >= said.offset and not any(
                offset in piece.offsets and key_hash(key, offset) in piece.hashes
                for piece in said.individual_commits
            ):
                missing.append(offset)
        return missing

    def read_all(self, feed: Feed, *others: "Service") -> None:
        """Let consumers that live, those of others too, read all that was written."""
        feed.stop()

        def is_read() -> bool:
            services = (self, *others)
            for each in services:
                each.look()
            wanted: dict[int, int] = {}
            for sent in feed.sent:
                at = sent["partition"]
                wanted[at] = max(wanted.get(at, 0), sent["offset"] + 1)
            total = sum(each.total for each in services)
            positions = {at: max(each.positions.get(at, 0) for each in services) for at in wanted}
            return positions == wanted and total >= len(feed.sent)

        eventually(is_read)

    def judge(self, *feeds: Feed, more: Sequence[Node] = ()) -> None:
        """The judge's verdict over all that was printed, which is complete."""
        reader = HistoryReader()
        for node in [*self.nodes, *more]:
            for run in node.runs:
                reader.read(run.name, run.read_text().splitlines())
        reader.read("sent", (json.dumps(each) for feed in feeds for each in feed.sent))
        found = [str(each) for each in check_history(reader.history())]
        assert not found, "\n".join(found[:20])
