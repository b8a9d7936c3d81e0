"""The ledger's state of a query: the last decided batch, and its transactions.

Pure. Guarantees: ``decode(encode(state)) == state``; a batch is decided at most once.
"""

import json
from dataclasses import dataclass, replace
from typing import Any, Final

from kshare.cluster.topics import LEDGER_TOPIC
from kshare.errors import CheckpointVersionError, KafkaError

__all__ = ["Entry", "State", "decode", "encode", "is_written", "next_state"]

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
    """

    batch: int
    run: str
    runs: tuple[str, ...]
    entries: tuple[Entry, ...] = ()
    ended: bool = False

    def end(self) -> "State":
        """The same when all transactions are committed."""
        return replace(self, ended=True)

    def retract(self) -> "State":
        """The state when nothing of the batch was committed, nor will be."""
        return replace(self, batch=self.batch - 1, entries=(), ended=True)


def next_state(state: State | None, run: str, batch: int, entries: tuple[Entry, ...]) -> State:
    """The state after the decision for a batch, not ended yet."""
    runs = () if state is None else state.runs
    known = runs if run in runs else (*runs, run)
    return State(batch, run, known[-RUNS_MAX:], entries)


def is_written(state: State | None, run: str, batch: int) -> bool:
    """True if a batch was decided before; rows of a repetition do not count.

    Raises:
        KafkaError: another run has begun since, or the batch lies before the last one.
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


def encode(state: State) -> bytes:
    """A state as the ledger's JSON."""
    rows = [[e.task, e.attempt, e.producer_id, e.epoch, e.rows] for e in state.entries]
    fields = {
        "v": VERSION,
        "batch": state.batch,
        "run": state.run,
        "runs": state.runs,
        "ended": state.ended,
        "transactions": rows,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(value: bytes) -> State:
    """The state that :func:`encode` wrote.

    Raises:
        CheckpointVersionError: a later kshare wrote it.
        KafkaError: the bytes are no state.
    """
    try:
        fields: dict[str, Any] = json.loads(value)
        version = fields["v"]
        if version == VERSION:
            return State(
                batch=int(fields["batch"]),
                run=str(fields["run"]),
                runs=tuple(map(str, fields["runs"])),
                entries=tuple(Entry(*map(int, row)) for row in fields["transactions"]),
                ended=bool(fields["ended"]),
            )
    except (KeyError, TypeError, ValueError) as error:
        raise KafkaError(
            f"topic {LEDGER_TOPIC} holds a record that is no state of a sink: {error}",
            topic=LEDGER_TOPIC,
        ) from error
    raise CheckpointVersionError(
        f"topic {LEDGER_TOPIC} holds a state of version {version!r}, this kshare reads "
        f"{VERSION}: use the kshare that wrote it, or a later one",
        version=version,
    )
