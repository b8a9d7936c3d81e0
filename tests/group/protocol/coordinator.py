"""A model of the brokers' group coordinator: the classic protocol, without time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol, TypeAlias

from kshare.group.protocol.membership.requests import Code, Join, Sync
from tests.group.protocol.owning import shallow


class Receiver(Protocol):
    """A member, as answers need it."""

    def joined(
        self,
        member_id: str,
        generation: int,
        leader: str,
        members: Mapping[str, bytes],
        *,
        protocol: str,
    ) -> None: ...

    def synced(self, assignment: bytes) -> None: ...

    def refused(self, code: Code) -> None: ...


Mail: TypeAlias = Callable[[Receiver], None]
"""An answer on its way to a member."""


class Stage(Enum):
    EMPTY = 0
    PREPARING = 1
    COMPLETING = 2
    STABLE = 3


@dataclass(frozen=True)
class Known:
    """A member as the coordinator knows it."""

    process: str
    said: bytes
    protocols: tuple[str, ...]
    awaits_join: bool = False
    awaits_sync: bool = False


@dataclass(frozen=True)
class Joined:
    member_id: str
    generation: int
    leader: str
    members: tuple[tuple[str, bytes], ...]
    protocol: str

    def __call__(self, membership: Receiver) -> None:
        membership.joined(
            self.member_id,
            self.generation,
            self.leader,
            dict(self.members),
            protocol=self.protocol,
        )


@dataclass(frozen=True)
class Synced:
    assignment: bytes

    def __call__(self, membership: Receiver) -> None:
        membership.synced(self.assignment)


@dataclass(frozen=True)
class Refused:
    code: Code

    def __call__(self, membership: Receiver) -> None:
        membership.refused(self.code)


@dataclass
class Coordinator:
    """The group, and the mail to its members' processes."""

    stage: Stage = Stage.EMPTY
    generation: int = 0
    leader: str = ""
    members: dict[str, Known] = field(default_factory=dict)
    assignments: Mapping[str, bytes] = field(default_factory=dict)
    mail: dict[str, tuple[Mail, ...]] = field(default_factory=dict)
    ids: int = 0
    saved: "Coordinator | None" = None  # as it was stable last, in __consumer_offsets

    def clone(self) -> "Coordinator":
        copy = shallow(self)
        copy.members, copy.mail = dict(self.members), dict(self.mail)
        copy.assignments = dict(self.assignments)
        return copy

    def fingerprint(self) -> tuple[object, ...]:
        return (
            self.stage,
            self.generation,
            self.leader,
            tuple(self.members.items()),
            tuple(sorted(self.assignments.items())),
            tuple(sorted((name, mail) for name, mail in self.mail.items() if mail)),
            None if self.saved is None else self.saved.fingerprint(),
        )

    # -- requests ----------------------------------------------------------------------------

    def join(self, process: str, request: Join) -> None:
        member_id = request.member_id
        if member_id and member_id not in self.members:
            self._send(process, Refused(Code.UNKNOWN_MEMBER_ID))
            return
        if not member_id:
            self.ids += 1
            member_id = f"{process}.{self.ids}"
        self.members[member_id] = Known(
            process, request.subscription, request.protocols, awaits_join=True
        )
        self._prepare()

    def sync(self, process: str, request: Sync) -> None:
        known = self.members.get(request.member_id)
        if known is None:
            self._send(process, Refused(Code.UNKNOWN_MEMBER_ID))
        elif request.generation != self.generation:
            self._send(process, Refused(Code.ILLEGAL_GENERATION))
        elif self.stage is Stage.PREPARING:
            self._send(process, Refused(Code.REBALANCE_IN_PROGRESS))
        elif self.stage is Stage.STABLE:
            self._send(process, Synced(self.assignments.get(request.member_id, b"")))
        else:
            self.members[request.member_id] = replace(known, awaits_sync=True)
            if request.member_id == self.leader:
                self.assignments, self.stage = dict(request.assignments), Stage.STABLE
                for member_id, each in list(self.members.items()):
                    if each.awaits_sync:
                        self._send(each.process, Synced(self.assignments.get(member_id, b"")))
                        self.members[member_id] = replace(each, awaits_sync=False)
                self._save()

    def unnamed(self, request: Sync) -> list[str]:
        """The members to whom a leader's request would assign nothing, not even no partition."""
        is_plan = self.stage is Stage.COMPLETING and request.generation == self.generation
        if not is_plan or request.member_id != self.leader:
            return []
        return [each for each in self.members if each not in request.assignments]

    def heartbeat(self, member_id: str, generation: int) -> Code | None:
        """The error; None if all is well."""
        if member_id not in self.members:
            return Code.UNKNOWN_MEMBER_ID
        if generation != self.generation:
            return Code.ILLEGAL_GENERATION
        return Code.REBALANCE_IN_PROGRESS if self.stage is Stage.PREPARING else None

    def remove(self, member_id: str) -> None:
        """It has left, or its session has timed out."""
        del self.members[member_id]
        if self.members:
            self._prepare()
        else:
            self.stage = Stage.EMPTY
            self._save()

    def _save(self) -> None:
        self.saved = replace(self, members=dict(self.members), mail={}, saved=None)

    def fail_over(self) -> list[str]:
        """Another broker takes over, with what was saved: nothing of a rebalance under way.

        Returns:
            Processes that wait for an answer, which does not come.
        """
        waiting = [
            each.process for each in self.members.values() if each.awaits_join or each.awaits_sync
        ]
        saved = self.saved or Coordinator()
        self.stage, self.generation, self.leader = saved.stage, saved.generation, saved.leader
        self.members, self.assignments = dict(saved.members), saved.assignments
        return waiting

    # -- what it does by itself --------------------------------------------------------------

    @property
    def can_complete(self) -> bool:
        everyone = self.members.values()
        return self.stage is Stage.PREPARING and all(each.awaits_join for each in everyone)

    def complete(self) -> None:
        """All have joined: the next generation."""
        self.generation += 1
        self.stage, self.assignments = Stage.COMPLETING, {}
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        listed = tuple((member_id, each.said) for member_id, each in self.members.items())
        everyone = self.members.values()
        protocol = next(
            name
            for name in self.members[self.leader].protocols
            if all(name in each.protocols for each in everyone)
        )
        for member_id, each in list(self.members.items()):
            told = listed if member_id == self.leader else ()
            answer = Joined(member_id, self.generation, self.leader, told, protocol)
            self._send(each.process, answer)
            self.members[member_id] = replace(each, awaits_join=False)

    def _prepare(self) -> None:
        if self.stage is not Stage.PREPARING:
            self.stage = Stage.PREPARING
            for member_id, each in list(self.members.items()):
                if each.awaits_sync:
                    self._send(each.process, Refused(Code.REBALANCE_IN_PROGRESS))
                    self.members[member_id] = replace(each, awaits_sync=False)

    def _send(self, process: str, mail: Mail) -> None:
        self.mail[process] = (*self.mail.get(process, ()), mail)
