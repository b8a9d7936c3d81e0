"""Reading a history from JSON lines: kshare's own events, and those of Kafka's verifiable clients.

The format is in docs/design/histories.md.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from integration.history.model import (
    Committed,
    Delivery,
    Events,
    History,
    Outcome,
    OwnerChange,
    Sent,
)
from kshare.core.hashing import HASH_SPACE, HashRange
from kshare.core.progress import TopicPartition
from kshare.errors import KshareError
from kshare.options.kinds import parse_key

__all__ = ["HistoryFileError", "HistoryReader"]

_NS_PER_MS: Final = 1_000_000
_FAULTS_SHOWN: Final = 20


class HistoryFileError(KshareError):
    """Lines of a history cannot be read; each is in the text."""

    def __init__(self, faults: Sequence[str]) -> None:
        more = [f"and {len(faults) - _FAULTS_SHOWN} more"] if len(faults) > _FAULTS_SHOWN else []
        super().__init__("\n".join([*faults[:_FAULTS_SHOWN], *more]))


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Partition(_Line):
    topic: str
    partition: int = Field(ge=0)

    @property
    def at(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class _Part(_Partition):
    hashes: list[tuple[int, int]] = Field(default=[], strict=False)

    @property
    def ranges(self) -> tuple[HashRange, ...]:
        return tuple(HashRange(max(0, lo), min(hi, HASH_SPACE)) for lo, hi in self.hashes)


class _Sent(_Partition):
    type: Literal["sent"]
    offset: int | None = Field(default=None, ge=0)
    key: str | dict[str, str] | None = None
    outcome: Outcome = "written"
    transaction: str | None = None
    name: str | None = None


class _Received(_Partition):
    type: Literal["received"]
    process: str
    time: int
    offset: int = Field(ge=0)
    key: str | dict[str, str] | None = None
    name: str | None = None


class _Changed(_Line):
    type: Literal["assigned", "revoked", "lost"]
    process: str
    time: int
    partitions: list[_Part]


class _Committed(_Partition):
    type: Literal["committed"]
    process: str
    time: int
    offset: int | None = Field(default=None, ge=0)
    below: int | None = Field(default=None, ge=0)


class _Interrupted(_Line):
    type: Literal["resumed", "closing"]
    process: str
    time: int


class _Plain(_Line):
    type: Literal["plain"]
    process: str


class _Reset(_Line):
    type: Literal["reset"]
    time: int


class _Start(_Partition):
    type: Literal["start"]
    offset: int = Field(ge=0)


_Event: TypeAlias = (
    _Sent | _Received | _Changed | _Committed | _Interrupted | _Plain | _Reset | _Start
)
_EVENTS: Final[TypeAdapter[_Event]] = TypeAdapter(Annotated[_Event, Field(discriminator="type")])


class HistoryReader:
    """Collects the lines of files, and makes a history of them."""

    def __init__(self) -> None:
        self._faults: list[str] = []
        self._sent: list[Sent] | None = None
        self._resets: list[int] = []
        self._starts: dict[TopicPartition, int] = {}
        self._lines: dict[str, list[Delivery | OwnerChange | Committed]] = {}
        self._resumed: dict[str, list[int]] = {}
        self._closing: dict[str, list[int]] = {}
        self._plain: set[str] = set()

    def read(self, file: str, lines: Iterable[str]) -> None:
        """Take the lines of a file.

        Args:
            file: Its name; of a verifiable client's file it is the process's name, too.
            lines: JSON; empty ones are passed over.
        """
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                given = json.loads(line)
                events = _of_client(file, given) if _is_of_client(given) else [given]
                for event in events:  # as JSON, a list is a tuple
                    self._add(_EVENTS.validate_json(json.dumps(event)))
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"])
                self._faults.append(f"{file}:{number}: {where or 'type'}: {first['msg']}")
            except (KeyError, TypeError, ValueError, RecursionError) as error:
                self._faults.append(f"{file}:{number}: {error}")

    def history(self, *, has_order: bool = True, is_complete: bool = True) -> History:
        """The history that was read.

        Args:
            has_order: As in :class:`.History`.
            is_complete: As in :class:`.History`.

        Raises:
            HistoryFileError: Lines could not be read.
        """
        if self._faults:
            raise HistoryFileError(self._faults)
        names = dict.fromkeys([*self._lines, *self._resumed, *self._closing])
        return History(
            processes={name: self._events(name) for name in names},
            sent=self._sent,
            resets=sorted(self._resets),
            starts=self._starts,
            has_order=has_order,
            is_complete=is_complete,
        )

    def _events(self, name: str) -> Events:
        lines = self._lines.get(name, [])
        return Events(
            lines,
            self._resumed.get(name, []),
            self._closing.get(name, []),
            has_callbacks=any(isinstance(line, OwnerChange) for line in lines),
            is_plain=name in self._plain,
        )

    def _add(self, event: _Event) -> None:
        match event:
            case _Sent():
                self._add_sent(event)
            case _Received():
                key = _key(event.key)
                line = Delivery(event.time, event.at, event.offset, key, event.name)
                self._lines.setdefault(event.process, []).append(line)
            case _Changed():
                hashes = {each.at: each.ranges for each in event.partitions}
                is_gain, is_lost = event.type == "assigned", event.type == "lost"
                change = OwnerChange(event.time, is_gain, hashes, is_lost)
                self._lines.setdefault(event.process, []).append(change)
            case _Committed():
                if (event.offset is None) == (event.below is None):
                    raise ValueError("committed needs offset (of one record) or below")
                offset = event.below if event.offset is None else event.offset
                known = Committed(event.time, event.at, offset or 0, event.below is not None)
                self._lines.setdefault(event.process, []).append(known)
            case _Interrupted():
                found = self._resumed if event.type == "resumed" else self._closing
                found.setdefault(event.process, []).append(event.time)
            case _Plain():
                self._plain.add(event.process)
            case _Reset():
                self._resets.append(event.time)
            case _Start():
                self._starts[event.at] = event.offset

    def _add_sent(self, event: _Sent) -> None:
        if event.offset is None and event.name is None:
            raise ValueError("sent needs an offset, or the record's name")
        key = _key(event.key) if "key" in event.model_fields_set else None
        sent = Sent(event.at, event.offset, key, event.outcome, event.transaction, event.name)
        if self._sent is None:
            self._sent = []
        self._sent.append(sent)


def _key(given: str | dict[str, str] | None) -> bytes:
    return b"" if given is None else parse_key(given)


# -- Kafka's verifiable clients -------------------------------------------------------------------


def _is_of_client(given: Any) -> bool:
    return isinstance(given, dict) and "type" not in given and "name" in given


def _of_client(file: str, given: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a line of a verifiable client; those that say nothing of records: none."""
    name = given["name"]
    here = {"process": file, "time": int(given.get("timestamp", 0)) * _NS_PER_MS}
    if name == "record_data":
        where = {field: given[field] for field in ("topic", "partition", "offset", "key")}
        return [{"type": "received", **here, **where}]
    if name in {"partitions_assigned", "partitions_revoked", "partitions_lost"}:
        what = name.removeprefix("partitions_")
        return [{"type": what, **here, "partitions": given["partitions"]}]
    if name == "offsets_committed" and given["success"]:
        return [
            {
                "type": "committed",
                **here,
                "topic": each["topic"],
                "partition": each["partition"],
                "below": each["offset"],
            }
            for each in given["offsets"]
            if not each.get("error")
        ]
    if name == "producer_send_success":
        where = {field: given[field] for field in ("topic", "partition", "offset", "key")}
        return [{"type": "sent", **where}]
    return []
