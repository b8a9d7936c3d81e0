"""How large a group may be: 1,000 members of 10,000 partitions, on a broker with its default limits.

The coordinator keeps a group's metadata in one record of 1 MB. Members are simulated: what they say
is that of :class:`~kshare.group.protocol.membership.membership_state.Membership`, each over a connection of its own;
nobody reads, claims or sends heartbeats, and the topic need not exist.

``python -m bench.group_size SERVERS [MEMBERS PARTITIONS]``
"""

import select
import sys
import time
from collections.abc import Mapping
from typing import Any

from kshare.core.progress import TopicPartition
from kshare.group.config.consumer_config import consumer_config
from kshare.group.config.table import ConsumerConfig
from kshare.group.membership.member_link import MemberLink
from kshare.group.protocol.commit_log.consumer_protocol import COMPRESSED
from kshare.group.protocol.membership.membership_state import Membership, State
from kshare.group.protocol.membership.requests import Join, PlanRequest, Sync
from kshare.group.protocol.membership.subscription import Subscription
from kshare.group.protocol.plan.generation import plan_generation
from kshare.kafka.protocol.error_codes import name

TOPIC = "orders-of-all-customers1"
_SECONDS = 300.0


class Member:
    """A simulated member."""

    def __init__(self, config: ConsumerConfig, number: int, partitions: int) -> None:
        said = Subscription(
            f"worker-7f9c-{number:04}-17-5f0c", (TOPIC,), host=f"10.2.0.{number}", reads=COMPRESSED
        )
        self.core = Membership(config.group, said)
        self.link = MemberLink(config, lambda: None)
        self.errors: list[str] = []
        self.planned_bytes = 0
        self._partitions = partitions

    def act(self) -> None:
        """Say what is to be said."""
        while (action := self.core.action()) is not None:
            match action:
                case Join():
                    self.link.join(action, self.hear)
                case Sync():
                    self.planned_bytes = self.core.standing.metadata_bytes
                    self.link.sync(action, self.hear)
                case PlanRequest(generation, members) as plan:
                    counts = {TOPIC: self._partitions}
                    planned = plan_generation(generation, self.core.said.name, members, counts)
                    self.core.planned(plan, planned.assignments(generation, "5fZ0" * 6))

        self.link.send()

    def hear(self, answer: Any) -> None:
        """Take an answer."""
        if answer.error_code == 79:  # MEMBER_ID_REQUIRED
            self.core.refused(_code(79), answer.member_id)
        elif answer.error_code:
            self.errors.append(name(answer.error_code))
            self.core.refused(_code(answer.error_code))
        elif self.core.state is State.JOINING:
            said = {each.member_id: bytes(each.metadata) for each in answer.members}
            leader = answer.leader
            self.core.joined(answer.member_id, answer.generation_id, leader, said)
        else:
            self.core.synced(bytes(answer.assignment))
            if self.core.take() is not None:
                self.core.applied()


def _code(number: int) -> Any:
    from kshare.group.protocol.membership.requests import Code

    return next((code for code in Code if code.value == number), None)


def settle(members: list[Member], partitions: int) -> float:
    """Let the group come to rest; the seconds that it took."""
    began = time.perf_counter()
    while time.perf_counter() - began < _SECONDS:
        poll = select.poll()
        watched: dict[int, Member] = {}
        for member in members:
            member.act()
            for fd, events in member.link.sockets.items():
                watched[fd] = member
                poll.register(fd, events)
        if owned(members) == partitions and not watched:
            return time.perf_counter() - began
        for fd, _ in poll.poll(100):  # connections are made meanwhile
            watched[fd].link.take([fd])
        errors = [error for member in members for error in member.errors]
        if errors.count("UNKNOWN_SERVER_ERROR") > len(members):
            break
    raise SystemExit(f"the group does not come to rest: {members[0].errors[-3:]}")


def owned(members: list[Member]) -> int:
    """The number of whole partitions that have an owner."""
    each: list[Mapping[TopicPartition, Any]] = [member.core.owned for member in members]
    return sum(map(len, each))


def main(servers: str, count: int = 1_000, partitions: int = 10_000) -> None:
    """Join all at once, then have all of them join again, with what they own."""
    config = consumer_config(
        {
            "bootstrap.servers": servers,
            "group.id": f"bench-size-{time.time_ns()}",
            "session.timeout.ms": 300_000,
            "max.poll.interval.ms": 300_000,
        }
    )
    members = [Member(config, number, partitions) for number in range(count)]
    for what in ("all join", "all join again"):
        for member in members:
            member.core.rebalance()
            member.planned_bytes = 0
        seconds = settle(members, partitions)
        size = max(member.planned_bytes for member in members)
        print(f"{count} members, {partitions} partitions, {what}: {seconds:.1f} s, {size:,} bytes")
    for member in members:
        member.link.close()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
