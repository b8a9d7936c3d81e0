"""Reads the log of one group: what counts at the end of the log, and what is wrong with it.

::

    the log from its begin --> bytes of the last record of each key --> settle: all decoded
    its end is followed    --> each record is decoded when it comes

So what compaction has not deleted yet costs its bytes alone, and a record that cannot be read is
forgotten when another one of its key follows, as a tombstone does.

What cannot be read at the end of the log has one of three consequences:

- It is passed over, with a warning, if at worst records come again that were committed: a fact, a
  stable offset, a beat, and what is no record of ours. All else of the group counts.
- It ends what members have of its partition, with a warning, if two could own the same hashes: a
  claim. They claim anew, and wait as if claims had been lost. It ends those that have leases or
  transactions, as what they have under way counts by the claims of all.
- It ends who reads the group, if records could be skipped or nobody knows what is meant: a lease, a
  reset, an epoch; another key hash; a later version.
"""

import re
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from kshare.core.progress import TopicPartition
from kshare.errors import CommitLogError, LaterVersionError, OtherHashError
from kshare.group.protocol.commit_log.consumer_protocol import dumps
from kshare.group.protocol.commit_log.log import EPOCHS_MAX, GroupLog
from kshare.group.protocol.commit_log.record_codec import decode, decode_key, encode_key
from kshare.group.protocol.commit_log.records import OPTIONAL, Key

__all__ = ["GroupReader"]

_EXCLUSIVE: Final = {"claim", "lease", "reset", "epoch"}
"""Kinds of records without which two members could do the same, or records be skipped."""
_ANEW: Final = (
    "; members without leases and transactions claim {} anew, and wait for claim.timeout.ms: what "
    "they have handed out and nobody has committed is delivered again"
)
_CLAIM: Final = re.compile(rb',"claim",')
"""In keys of claims, whose place is that of the last one."""
_WARNINGS_MAX: Final = 20


class _Damage(NamedTuple):
    """A record that cannot be read.

    Attributes:
        offset: Its offset in the log.
        error: Why.
        stops: Whether nobody may act upon the log without it.
        claims: The partition that members claim anew without it; None if they cannot go on.
    """

    offset: int
    error: CommitLogError
    stops: bool
    claims: TopicPartition | None


class _Unread:
    """The bytes of the records that still count: the last one of each key, as compaction has it.

    Args:
        group: Id of the group.
    """

    def __init__(self, group: str) -> None:
        self._last: dict[bytes, tuple[int, bytes | None]] = {}
        self._epoch_key = encode_key(group, Key(0, "epoch", None))
        self._epochs: deque[tuple[int, bytes | None]] = deque(maxlen=EPOCHS_MAX)

    def keep(self, offset: int, key: bytes, value: bytes | None) -> None:
        """Keep a record; what it replaces is forgotten."""
        if key == self._epoch_key:  # the log keeps some that are replaced
            self._epochs.append((offset, value))
            return
        last = self._last.pop(key, None)
        # A record that was sent twice is where it was first: of leases, the first counts.
        is_repeated = last is not None and last[1] == value and not _CLAIM.search(key)
        self._last[key] = last if last is not None and is_repeated else (offset, value)

    def rows(self) -> Iterator[tuple[int, bytes, bytes | None]]:
        """What was kept, in the order of the log."""
        rows = [(offset, key, value) for key, (offset, value) in self._last.items()]
        rows += [(offset, self._epoch_key, value) for offset, value in self._epochs]
        return iter(sorted(rows, key=lambda row: row[0]))


class GroupReader:
    """Applies the records of one group; others in the same partition are passed over.

    Args:
        partition: The log's partition.
        log: Takes the records.
        keeps_keys: Whether to know the keys of all records, for who deletes them.
    """

    def __init__(
        self, partition: TopicPartition, log: GroupLog, *, keeps_keys: bool = False
    ) -> None:
        self.log = log
        self._partition = partition
        # Every key begins with version, group and incarnation, whatever the version.
        self._mark = b"," + dumps(log.group) + b","
        self._unread: _Unread | None = _Unread(log.group)  # None once it has settled
        self._damaged: dict[bytes, _Damage] = {}
        self._warnings: list[str] = []
        self._keeps_keys = keeps_keys
        self._keys: dict[bytes, None] = {}

    @property
    def has_settled(self) -> bool:
        """True once the end of the log was reached: from then on, what is read counts at once."""
        return self._unread is None

    @property
    def keys(self) -> list[bytes]:
        """The keys of all records that are not deleted, if it keeps them."""
        return list(self._keys)

    @property
    def damaged(self) -> dict[bytes, int]:
        """The records that cannot be read by any version of kshare: their keys, and offsets."""
        others = LaterVersionError, OtherHashError
        return {
            key: each.offset
            for key, each in self._damaged.items()
            if not isinstance(each.error, others)
        }

    def apply(self, offset: int, key: bytes, value: bytes | None) -> None:
        """Take the next record, if it is one of the group's."""
        if self._mark not in key[: len(self._mark) + 24]:
            return
        if value is None:
            self._keys.pop(key, None)
        elif self._keeps_keys:
            self._keys[key] = None
        if self._unread is None:
            self._apply(offset, key, value)
        else:
            self._unread.keep(offset, key, value)

    def settle(self) -> None:
        """The end of the log was reached: what was read counts, and is in the log's state."""
        unread, self._unread = self._unread, None
        for offset, key, value in () if unread is None else unread.rows():
            self._apply(offset, key, value)

    def check(self, *, but_claims: bool = False) -> None:
        """Raise the fault of a record without which nobody may go on, at the end of the log.

        Args:
            but_claims: Whether to pass over claims, upon which the owners of their partitions act.

        Raises:
            CommitLogError: It cannot be read.
        """
        self.settle()
        for each in self._damaged.values():
            if each.stops and not (but_claims and each.claims):
                raise each.error.with_traceback(None)  # it may be raised again

    def take_warnings(self) -> list[str]:
        """What is to be said of records that are passed over; each once."""
        said, self._warnings = self._warnings, []
        more = len(said) - _WARNINGS_MAX
        if more > 0:
            said[_WARNINGS_MAX:] = [f"{self._place()}: {more} more records cannot be read"]
        return said

    def _apply(self, offset: int, key: bytes, value: bytes | None) -> None:
        self._damaged.pop(key, None)
        parsed = None
        try:
            group, parsed = decode_key(key)
            if group != self.log.group:
                return
            if not parsed.kind.endswith(OPTIONAL):
                self.log.apply(offset, parsed, None if value is None else decode(key, value)[1])
        except CommitLogError as error:
            if value is not None:
                self._note(key, offset, parsed, error)

    def _note(self, key: bytes, offset: int, parsed: Key | None, error: CommitLogError) -> None:
        kind = None if parsed is None else parsed.kind
        is_of_others = isinstance(error, LaterVersionError | OtherHashError)
        stops = kind in _EXCLUSIVE or isinstance(error, LaterVersionError)
        is_claim = kind == "claim" and not is_of_others
        claims = parsed.partition if parsed is not None and is_claim else None
        drop = f"kshare offsets drop --group {self.log.group}"
        if isinstance(error, LaterVersionError):
            advice = f"; or stop them, and {drop} deletes the group's records"
        elif isinstance(error, OtherHashError):
            advice = (
                ": install the version that wrote it on all members; or stop them, and "
                f"{drop} deletes the group's records: what was committed above the stable offsets "
                "is then delivered again"
            )
        else:
            over = "" if stops else "; it is passed over"
            anew = "" if claims is None else _ANEW.format(claims)
            advice = f"{over}{anew}; {drop} --damaged deletes such records alone"
        text = f"{self._place()}, offset {offset}, group {self.log.group}: {error}{advice}"
        self._damaged[key] = _Damage(offset, type(error)(text), stops, claims)
        if claims is not None and parsed is not None:
            self.log.damage(offset, parsed, text)
        if claims is not None or not stops:
            self._warnings.append(text)

    def _place(self) -> str:
        return str(self._partition)
