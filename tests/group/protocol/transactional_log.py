"""A log with transactions, and their coordinator, for the small worlds."""

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Self

from kshare.group.protocol.commit_log.log import GroupLog
from kshare.group.protocol.commit_log.records import Key, Record
from tests.group.protocol.owning import Mark, clone_log, shallow
from tests.group.protocol.process import apply_record


@dataclass(frozen=True)
class Transaction:
    """A transaction of a transactional id: what its coordinator knows."""

    number: int
    outputs: tuple[int, ...] = ()
    state: str = "open"  # or "committing", "aborting"
    incarnation: int = 0  # of the offsets that its records were handed out by


@dataclass
class TransactionCoordinator:
    """The epochs and the open transactions of transactional ids."""

    epochs: dict[str, int] = field(default_factory=dict)
    open: dict[str, Transaction] = field(default_factory=dict)
    begun: int = 0
    late: tuple[str, int] | None = None  # id and epoch of a request to commit that may arrive

    def numbers(self) -> frozenset[int]:
        """The transactions whose outcome is not in the log yet."""
        return frozenset(each.number for each in self.open.values())

    def fence(self, name: str) -> int | None:
        """InitProducerId: a new epoch, or None while a transaction is being ended."""
        current = self.open.get(name)
        self.epochs[name] = self.epochs.get(name, 0) + (current is None or current.state == "open")
        if current is None:
            return self.epochs[name]
        if current.state == "open":
            self.open[name] = replace(current, state="aborting")
        return None

    def write(
        self, name: str, epoch: int, outputs: tuple[int, ...], incarnation: int
    ) -> int | None:
        """Begin a transaction that holds some outputs; its number, or None for a fenced epoch."""
        if self.epochs[name] != epoch or name in self.open:
            return None
        self.begun += 1
        self.open[name] = Transaction(self.begun, outputs, incarnation=incarnation)
        return self.begun

    def end(self, name: str, epoch: int, state: str) -> bool:
        """EndTxn: whether it was this epoch's to end."""
        current = self.open.get(name)
        if self.epochs[name] != epoch or current is None or current.state != "open":
            return False
        self.open[name] = replace(current, state=state)
        return True

    def arrive(self) -> None:
        """A request to commit arrives that was repeated long since."""
        assert self.late is not None
        (name, epoch), self.late = self.late, None
        self.end(name, epoch, "committing")


@dataclass
class TransactionalLog:
    """Records by offset, each with the number of its transaction; 0 for none.

    Attributes:
        records: The records, ascending by offset.
        end: The offset of the next record.
        aborted: Numbers of the transactions that were aborted.
        topic_id: Id of the topic.
        version: How often its records have changed.
    """

    records: list[tuple[int, Key, Record | None, int]] = field(default_factory=list)
    end: int = 0
    aborted: frozenset[int] = frozenset()
    topic_id: str = "a"
    version: int = 0
    _decided: GroupLog = field(default_factory=lambda: GroupLog("g"))
    _mark: Mark | None = None
    _marks: tuple[Mark, ...] = ()  # of the first records
    _is_shared: bool = False  # whether copies have what is decided, too

    def append(self, key: Key, record: Record | None, number: int = 0) -> None:
        self.records.append((self.end, key, record, number))
        self.end += 1
        self.version += 1
        self._mark = None

    def stable(self, transactions: TransactionCoordinator) -> int:
        """The last stable offset."""
        if not transactions.open:
            return self.end
        open_ = transactions.numbers()
        return next((at for at, _, _, number in self.records if number in open_), self.end)

    def compact(self, below: int) -> None:
        kept = [each for each in self.records if each[3] not in self.aborted]
        last = {key: at for at, key, _, _ in kept if at < below}
        self.records = [
            each
            for each in kept
            if each[0] >= below or (last[each[1]] == each[0] and each[2] is not None)
        ]
        self._decided, self._is_shared = GroupLog("g"), False
        self.version += 1
        self._mark, self._marks = None, ()

    def between(self, start: int, end: int) -> list[tuple[int, Key, Record | None, int]]:
        """The records of some offsets."""
        first = bisect_left(self.records, start, key=itemgetter(0))
        return self.records[first : bisect_left(self.records, end, first, key=itemgetter(0))]

    def said(self, transactions: TransactionCoordinator) -> GroupLog:
        """What all facts say that are committed, also behind an open transaction.

        What is below the last stable offset is decided, and applied to what was said before.
        """
        stable, decided = self.stable(transactions), self._decided
        if decided.end < stable and self._is_shared:
            decided = self._decided = clone_log(decided)
            self._is_shared = False
        for at, key, record, number in self.between(decided.end, stable):
            if number not in self.aborted:
                apply_record(decided, at, key, record)
        decided.end = max(decided.end, stable)
        if stable == self.end:
            return decided
        said, open_ = clone_log(decided), transactions.numbers()
        for at, key, record, number in self.between(stable, self.end):
            if number not in open_ and number not in self.aborted:
                apply_record(said, at, key, record)
        return said

    def clone(self) -> Self:
        """A copy that shares nothing that changes."""
        self._is_shared = True
        copy = shallow(self)
        copy.records = list(self.records)
        return copy

    def mark(self) -> Mark:
        """Equal for logs with the same records."""
        if self._mark is None:
            self._marks += tuple(map(Mark.of, self.records[len(self._marks) :]))
            self._mark = Mark.of(self._marks)
        return self._mark
