"""The anomalies of what was written: whether it was received, once, as it was written."""

from collections.abc import Iterable, Iterator

from kshare.core.progress import TopicPartition
from kshare.testing.history.model import Anomaly, Delivery, History, Key, Sent, key_of

__all__ = ["Writes"]


class Writes:
    """The anomalies of what was written: whether it was received, once, as it was written."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._received: dict[tuple[TopicPartition, int], tuple[str, Delivery]] = {}
        self._names: set[str] = set()
        self._highest: dict[Key, int] = {}
        for name, line in history.deliveries():
            self._received.setdefault((line.partition, line.offset), (name, line))
            key = key_of(line.partition, line.key, line.offset)
            self._highest[key] = max(line.offset, self._highest.get(key, -1))
            if line.name is not None:
                self._names.add(line.name)

    def anomalies(self) -> Iterator[Anomaly]:
        """All of them."""
        yield from self._twice_written()
        sent = self._history.sent
        yield from self._inconsistent(sent or ())
        if sent is not None:
            yield from self._aborted(sent)
            yield from self._lost(sent)
            yield from self._torn(sent)

    def _twice_written(self) -> Iterator[Anomaly]:
        places: dict[str, set[tuple[TopicPartition, int]]] = {}
        for _, line in self._history.deliveries():
            if line.name is not None:
                places.setdefault(line.name, set()).add((line.partition, line.offset))
        for sent in self._history.sent or ():
            if sent.name is not None and sent.offset is not None and sent.outcome == "written":
                places.setdefault(sent.name, set()).add((sent.partition, sent.offset))
        for name, found in places.items():
            if len(found) > 1:
                where = ", ".join(f"{at} offset {offset}" for at, offset in sorted(found))
                yield Anomaly("duplicate", f"{name!r} is at {where}")

    def _inconsistent(self, sent: Iterable[Sent]) -> Iterator[Anomaly]:
        keys: dict[tuple[TopicPartition, int], tuple[bytes | None, str | None]] = {}
        has_unknown = self._history.sent is None
        for each in sent:
            if each.offset is None:
                has_unknown = True  # it may be any record
            else:
                keys[each.partition, each.offset] = each.key, each.name
        for name, line in self._history.deliveries():
            record = line.partition, line.offset
            wanted = keys.get(record)
            if wanted is None and not has_unknown:
                yield Anomaly("inconsistent record", f"{name} has received {line}: never written")
            if wanted is None:
                keys[record] = line.key, line.name
            elif wanted[0] not in {None, line.key}:
                yield Anomaly(
                    "inconsistent record", f"{name} has received {line}: it has key {wanted[0]!r}"
                )
            elif None not in {wanted[1], line.name} and wanted[1] != line.name:
                yield Anomaly(
                    "inconsistent record", f"{name} has received {line}: it is {wanted[1]!r}"
                )

    def _is_received(self, sent: Sent) -> bool:
        if sent.offset is not None:
            return (sent.partition, sent.offset) in self._received
        return sent.name in self._names

    def _is_missing(self, sent: Sent) -> bool:
        """True if it was not received, and could have been."""
        if self._is_received(sent):
            return False
        if sent.offset is None:
            return self._history.is_complete
        if sent.offset < self._history.starts.get(sent.partition, 0):
            return False
        if self._history.is_complete or sent.key is None:
            return self._history.is_complete
        key = key_of(sent.partition, sent.key, sent.offset)
        return self._highest.get(key, -1) > sent.offset

    def _aborted(self, sent: Iterable[Sent]) -> Iterator[Anomaly]:
        for each in sent:
            if each.outcome == "aborted" and self._is_received(each):
                of = "" if each.transaction is None else f" of transaction {each.transaction}"
                yield Anomaly("aborted read", f"{_named(each)}{of} was received")

    def _lost(self, sent: Iterable[Sent]) -> Iterator[Anomaly]:
        for each in sent:
            if each.outcome == "written" and self._is_missing(each):
                yield Anomaly("lost write", f"nobody has received {_named(each)}")

    def _torn(self, sent: Iterable[Sent]) -> Iterator[Anomaly]:
        transactions: dict[str, list[Sent]] = {}
        for each in sent:
            if each.transaction is not None and each.outcome != "aborted":
                transactions.setdefault(each.transaction, []).append(each)
        for name, rows in transactions.items():
            missing = [each for each in rows if self._is_missing(each)]
            if missing and any(self._is_received(each) for each in rows):
                some = ", ".join(_named(each) for each in missing[:5])
                yield Anomaly(
                    "torn transaction",
                    f"of {name}, {len(missing)} of {len(rows)} records were not received: {some}",
                )


def _named(sent: Sent) -> str:
    where = f"offset {sent.offset} of {sent.partition}" if sent.offset is not None else sent.name
    return where or "" if sent.key is None else f"{where}, key {sent.key!r}"
