"""Batches that run again, or seem to: what is dropped, refused, and named."""

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.errors import KafkaError
from kshare.query.produce import Attempt, Prepared
from kshare.query.produce.ledger_state import Entry, State, decode, encode
from tests.query.produce.test_crashes import OPTIONS, Kafka, Query


def begun(kafka: Kafka, run: str, batch: int, rows: list[int]) -> list[Prepared]:
    """The one task of a batch."""
    attempt = Attempt("q", run, batch, 0, 0, time.time())
    return [Prepared(attempt, kafka.begin(attempt.transactional_id, rows))]


@pytest.mark.parametrize("topic", ["t", "u"])
def test_a_batch_that_was_planned_anew_is_refused(topic: str) -> None:
    """The checkpoint was set back, or copied to a query that writes to another topic."""
    kafka = Kafka()
    query = Query(kafka, OPTIONS, True, None)
    query.work(begun(kafka, "r1", 0, [1, 2]), 0).commit()
    told = kafka.told
    query.options = replace(OPTIONS, topic=topic)
    others = begun(kafka, "r2", 0, [3, 4, 5] if topic == "t" else [3, 4])
    with pytest.raises(KafkaError, match=r"batch 0 was written before .*dropRepeatedBatch=0"):
        query.work(others, 0).commit()
    query.work(others, 0).abort()  # as Spark does
    assert kafka.told == told
    assert kafka.visible() == {1: 1, 2: 1}
    assert not [name for name, found in kafka.transactions.items() if found["state"] == "open"]
    query.options = replace(query.options, drop_repeated_batch=0)
    query.work(begun(kafka, "r3", 0, [3, 4, 5]), 0).commit()
    assert kafka.visible() == {1: 1, 2: 1}
    query.work(begun(kafka, "r3", 1, [6]), 1).commit()
    others = begun(kafka, "r4", 1, [7, 8])  # the option was for batch 0
    with pytest.raises(KafkaError, match="batch 1 was written before with 1 rows, and now has 2"):
        query.work(others, 1).commit()


def test_a_repetition_with_as_many_rows_is_dropped_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kafka = Kafka()
    query = Query(kafka, OPTIONS, True, None)
    query.work(begun(kafka, "r1", 0, [1, 2]), 0).commit()
    assert not caplog.records
    query.work(begun(kafka, "r2", 0, [1, 2]), 0).commit()
    (warning,) = caplog.messages
    assert "batch 0 of query q runs again" in warning
    assert "by run r1 with 2 rows: the 2 rows of now are dropped" in warning
    assert kafka.visible() == {1: 1, 2: 1}


def test_tasks_of_another_batch_are_refused() -> None:
    attempts = [Attempt("q", "r", batch, 0, 0, 0.0) for batch in (1, 2)]
    with pytest.raises(KafkaError, match="tasks of other batches report to batch 1"):
        Query(Kafka(), OPTIONS, True, None).work([Prepared(a, None) for a in attempts], 1)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_no_two_attempts_of_a_batch_share_a_transactional_id(
    batch: int, task: int, number: int
) -> None:
    attempt = Attempt("q", "r", batch, task, number, 0.0)
    name = attempt.transactional_id
    assert name.startswith("kshare-q-r-")
    for other in (
        replace(attempt, task=task + 1),
        replace(attempt, number=number + 1),
        replace(attempt, run="s"),
        replace(attempt, query="p"),
        replace(attempt, batch=batch + 1),
    ):
        assert other.transactional_id != name
    assert replace(attempt, batch=batch + 2).transactional_id == name


def test_a_decision_that_names_no_transactions_drops_no_rows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever may write to the ledger has written it: the rows would be gone."""
    kafka = Kafka()
    query = Query(kafka, OPTIONS, True, None)
    query.work(begun(kafka, "r1", 0, [1]), 0).commit()
    kafka.told = encode(State(1, "r1", ("r1",), ended=True))
    forged = kafka.told
    again = begun(kafka, "r1", 1, [2, 3])
    with pytest.raises(KafkaError, match="batch 1 was written, but not by which transactions"):
        query.work(again, 1).commit()
    query.work(again, 1).abort()
    assert (kafka.told, kafka.visible()) == (forged, {1: 1})
    kafka.told = None  # kshare ledger drop
    query.work(begun(kafka, "r1", 1, [2, 3]), 1).commit()
    assert kafka.visible() == {1: 1, 2: 1, 3: 1}
    (warning,) = caplog.messages
    assert "knows nothing of query q before batch 1" in warning


def test_a_decision_is_ended_by_the_prefix_that_it_was_made_with() -> None:
    kafka = Kafka()
    query = Query(kafka, OPTIONS, True, None)
    prepared = begun(kafka, "r1", 0, [1, 2])
    assert prepared[0].transaction
    own = prepared[0].transaction
    entry = Entry(0, 0, own.producer_id, own.epoch, 2)
    kafka.told = encode(State(0, "r1", ("r1",), (entry,)))
    query.options = replace(OPTIONS, id_prefix="team")
    attempt = Attempt("q", "r2", 0, 0, 0, time.time(), prefix="team")
    assert attempt.transactional_id == "team-q-r2-0-0-0"
    again = [Prepared(attempt, kafka.begin(attempt.transactional_id, [1, 2]))]
    query.work(again, 0).commit()
    assert kafka.visible() == {1: 1, 2: 1}
    attempt = replace(attempt, batch=1)
    query.work([Prepared(attempt, kafka.begin(attempt.transactional_id, [3]))], 1).commit()
    assert kafka.told is not None
    assert decode(kafka.told).prefix == "team"
    assert kafka.visible() == {1: 1, 2: 1, 3: 1}
