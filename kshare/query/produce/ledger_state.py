"""The state of a query in the ledger: its last batch, by which transactions; read and judged.

Guarantees: ``decode(encode(state)) == state``. Whoever may write to the ledger decides what counts
as written: a record is read within bounds, and one that names no transactions drops no rows.

Pure: :mod:`kshare.query.produce.ledger` reads and writes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kshare.core.bounded_json import DAMAGE, count_of, flag_of, list_of, read_object, text_of
from kshare.errors import CheckpointVersionError, KafkaError, LedgerRecordError
from kshare.kafka.compacted_topic import Row
from kshare.kafka.topics import LEDGER_TOPIC
from kshare.options.sink import ID_PREFIX

__all__ = [
    "RUNS_MAX",
    "Entry",
    "State",
    "check_repetition",
    "decode",
    "encode",
    "is_written",
    "next_state",
]

VERSION: Final = 1
RUNS_MAX: Final = 50
"""Number of remembered runs of a query; an older one learns that it is not the last."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One transaction of a decided batch: task, attempt, producer, and number of rows."""

    task: int
    attempt: int
    producer_id: int
    epoch: int
    rows: int


@dataclass(frozen=True, slots=True)
class State:
    """The ledger's state of a query.

    Attributes:
        batch: Number of the last batch that was decided.
        run: Id of the run that decided it: a start of the query.
        runs: Ids of the last runs, in the order of their first decisions; ``run`` is the last one.
        entries: The transactions that hold the batch; the first is the leader.
        ended: Whether all of them have been ended.
        topic: The topic of all rows; empty if each row names its own.
        prefix: How the ids of the transactions begin.
    """

    batch: int
    run: str
    runs: tuple[str, ...]
    entries: tuple[Entry, ...] = ()
    ended: bool = False
    topic: str = ""
    prefix: str = ID_PREFIX

    @property
    def rows(self) -> int:
        """Number of rows of the batch."""
        return sum(entry.rows for entry in self.entries)

    def end(self) -> "State":
        """The same when all transactions are committed."""
        return replace(self, ended=True)

    def retract(self) -> "State":
        """The state when nothing of the batch was committed, nor will be."""
        return replace(self, batch=self.batch - 1, entries=(), ended=True)


def next_state(
    state: State | None,
    run: str,
    batch: int,
    entries: tuple[Entry, ...],
    topic: str = "",
    prefix: str = ID_PREFIX,
) -> State:
    """The state after the decision for a batch, not ended yet."""
    runs = () if state is None else state.runs
    known = runs if run in runs else (*runs, run)
    return State(batch, run, known[-RUNS_MAX:], entries, topic=topic, prefix=prefix)


def is_written(state: State | None, run: str, batch: int) -> bool:
    """True if a batch was decided before; rows of a repetition do not count.

    Raises:
        KafkaError: Another run has begun since, or the batch lies before the last one.
    """
    if state is None:
        return False
    if run in state.runs[:-1]:
        raise KafkaError(
            f"exactlyOnce: batch {batch} is not written: the query was started again on the same "
            f"checkpoint (run {state.run} has written batch {state.batch}), and this is an older "
            "run: stop one of the two"
        )
    if batch < state.batch:
        raise KafkaError(
            f"exactlyOnce: batch {batch} was written before, and {state.batch} was the last one: "
            "the checkpoint was put back to an older state. Restore the newer one, or begin with a "
            "new checkpoint if rows are to be written again"
        )
    return batch == state.batch


def check_repetition(state: State, rows: int, topic: str) -> None:
    """Refuse the rows of a batch that was written before, if they cannot be the same ones.

    A batch that Spark runs again has the offsets of the first time, so it has as many rows. One
    that is planned anew, from a checkpoint that was set back or copied, has the same number and
    other rows, which nobody would write.

    Args:
        state: The ledger's state; its batch is the repeated one.
        rows: Number of rows of the repetition.
        topic: The topic of all of them; empty if each row names its own.

    Raises:
        KafkaError: The number of rows differs, or the topic; or the ledger does not say which rows
            were written.
    """
    if not rows:  # nothing to lose
        return
    if not state.entries:
        # Of a batch that was withdrawn, Spark never repeats the one before. Others can write that.
        raise KafkaError(
            f"exactlyOnce: the ledger says that batch {state.batch} was written, but not by which "
            f"transactions, and {rows:,} rows are to be written now. They are not written. Either "
            "the checkpoint was put back to an older state: restore the newer one. Or somebody "
            "else has written to the ledger (docs/exactly-once.md says who may): see in the topic "
            f"whether the rows are there. If they are, dropRepeatedBatch={state.batch} drops those "
            "of now"
        )
    if rows != state.rows:
        what = f"with {state.rows:,} rows, and now has {rows:,}"
    elif topic and state.topic and topic != state.topic:
        what = f"to topic {state.topic}, and is now to be written to {topic}"
    else:
        return
    raise KafkaError(
        f"exactlyOnce: batch {state.batch} was written before {what}. The rows of now are not "
        "written: the checkpoint was put back to an older state, or it is a copy of another "
        "query's. Restore the newer one; or give this one an id of its own (docs/exactly-once.md "
        "says how), if its rows are to be written whatever was written before. If the checkpoint "
        "is the right one, and the query was changed or its rows differ from run to run: start it "
        f"as it was, or with dropRepeatedBatch={state.batch}, which drops the rows of now"
    )


def encode(state: State) -> bytes:
    """A state as the ledger's JSON."""
    rows = [[e.task, e.attempt, e.producer_id, e.epoch, e.rows] for e in state.entries]
    fields: dict[str, Any] = {
        "v": VERSION,
        "batch": state.batch,
        "run": state.run,
        "runs": state.runs,
        "ended": state.ended,
        "transactions": rows,
    }
    if state.topic:
        fields["topic"] = state.topic  # which earlier versions pass over
    if state.prefix != ID_PREFIX:
        fields["prefix"] = state.prefix
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(value: bytes, topic: str = LEDGER_TOPIC, row: Row | None = None) -> State:
    """The state that :func:`encode` wrote.

    Args:
        value: The bytes, which others may have written.
        topic: Where they are, for the errors.
        row: The record, for the errors.

    Raises:
        CheckpointVersionError: A later kshare wrote it.
        LedgerRecordError: The bytes are no state.
    """
    place = topic if row is None else f"{topic}, partition {row.partition}, offset {row.offset},"
    try:
        fields = read_object(value)
        version = fields["v"]
        if version == VERSION:
            return _state(fields)
    except DAMAGE as error:
        raise LedgerRecordError(
            f"topic {place} holds a record that is no state of a sink: {error}. Only this query "
            "stops for it. docs/exactly-once.md says how to remove it, and who may write there",
            topic=topic,
            partition=None if row is None else row.partition,
            offset=None if row is None else row.offset,
        ) from error
    raise CheckpointVersionError(
        f"topic {place} holds a state of version {version!r:.100}, this kshare reads "
        f"{VERSION}: use the kshare that wrote it, or a later one",
        version=version,
    )


def _state(fields: Mapping[str, Any]) -> State:
    batch, run = fields["batch"], text_of(fields["run"])
    runs = tuple(map(text_of, list_of(fields["runs"])))
    state = State(
        batch=-1 if batch == -1 else count_of(batch),  # -1: the first one was withdrawn
        run=run,
        runs=runs,
        entries=tuple(
            Entry(*map(count_of, list_of(row))) for row in list_of(fields["transactions"])
        ),
        ended=flag_of(fields["ended"]),
        topic=text_of(fields.get("topic", "")),
        prefix=text_of(fields.get("prefix", ID_PREFIX)),
    )
    if runs[-1:] != (run,) or len(runs) > RUNS_MAX:
        raise ValueError(f"wanted 1 to {RUNS_MAX} runs, the last of them being {run!r:.100}")
    if not (state.entries or state.ended):
        raise ValueError("a decision without transactions")
    return state
