"""The judges of histories and of what lives long find each fault that is put into good ones."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from integration.conditions import Look, Observer, Stillness, set_back
from integration.handler_judge import Call, Handlers, Letter, Process, calls_of
from integration.histories import HISTORIES, modes_of
from integration.history import Delivery, Events, History, check_history
from integration.query_histories import batches_of, begun_batches, faults_of_batches
from integration.residents import GROWTH, Measure, grown
from integration.transactions import faults_of_outputs
from kshare.core.progress import TopicPartition

KEY = b"k"
SENT = [(KEY, "ok"), (KEY, "fails 1"), (KEY, "bad"), (KEY, "ok"), (b"other", "later")]
GOOD = """\
began 100 0 0 6b 1
handled 110 0 0 6b 1
began 120 0 1 6b 1
failed 130 0 1 6b 1
began 340 0 1 6b 2
handled 350 0 1 6b 2
began 360 0 2 6b 1
failed 370 0 2 6b 1
began 600 0 2 6b 2
failed 610 0 2 6b 2
began 105 0 4 6f74686572 1
later 106 0 4 6f74686572 1
began 700 0 4 6f74686572 1
handled 710 0 4 6f74686572 1
"""
AFTER = "began 620 0 3 6b 1\nhandled 630 0 3 6b 1\n"


def history(text: str = GOOD + AFTER, policy: str = "dead letters") -> Handlers:
    """Two attempts a record, 200 ns apart; a RetryAfter is for 500 ns."""
    process = Process(calls_of("a", [line.split() for line in text.splitlines()]))
    letters = [Letter(KEY, 2, "ValueError")]
    return Handlers({"a": process}, SENT, policy, 2, 200, 500, letters)


def sequence() -> Handlers:
    return replace(
        history(GOOD, "sequences"), letters=[Letter(KEY, 2, "ValueError"), Letter(KEY, 3, "")]
    )


def test_good_histories() -> None:
    assert history().faults() == []
    assert sequence().faults() == []
    is_twice = [*sequence().letters, *sequence().letters]
    a = replace(sequence().processes["a"], interrupted=[615])
    assert replace(sequence(), letters=is_twice, processes={"a": a}).faults() == []


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("lost", "began 620 0 3 6b 1\nhandled 630 0 3 6b 1\n", ""),
        ("overtaken", "began 620 0 3", "began 605 0 3"),
        ("overtaken", "began 120 0 1 6b 1", "began 105 0 1 6b 1"),
        ("beside", "began 620 0 3", "began 605 0 3"),
        ("early", "began 340", "began 140"),
        ("early", "began 700", "began 500"),
        ("miscounted", "began 700 0 4 6f74686572 1", "began 700 0 4 6f74686572 2"),
        ("again", "began 340 0 1 6b 2", "began 340 0 1 6b 1"),
        ("again", AFTER, AFTER + AFTER.replace("6", "7", 1).replace("630", "730")),
        ("one attempt too many", "began 620", "began 615 0 2 6b 3\nfailed 616 0 2 6b 3\nbegan 620"),
    ],
    ids=str,
)
def test_a_call_that_must_not_be(kind: str, before: str, after: str) -> None:
    text = GOOD + AFTER
    assert before in text
    broken = history(text.replace(before, after))
    assert any(fault.startswith(kind) for fault in broken.faults()), broken.faults()


def test_a_call_comes_again_after_its_process_was_killed_or_has_lost_its_keys() -> None:
    def with_second(interrupted: Sequence[int] = (), lost: Sequence[int] = ()) -> list[str]:
        again = Call("b", KEY, 3, 1, 900, 910, "handled")
        good = history()
        a = replace(good.processes["a"], interrupted=interrupted, lost=lost)
        return replace(good, processes={"a": a, "b": Process([again])}).faults()

    assert with_second() == [
        "again: b at 900: offset 3, attempt 1, as a at 620: offset 3, attempt 1 (handled)"
    ]
    assert with_second(interrupted=[625]) == []
    assert with_second(lost=[800]) == []
    assert with_second(interrupted=[610], lost=[950]) != []


def test_a_call_comes_again_that_was_cut_off_by_the_end_of_its_process() -> None:
    def with_second(*after: Call) -> list[str]:
        good = history()
        cut = Call("a", KEY, 3, 1, 720, 730, "cancelled")
        calls = [each for each in good.processes["a"].calls if each.offset != 3]
        a = replace(good.processes["a"], calls=[*calls, cut, *after])
        again = Call("b", KEY, 3, 1, 900, 910, "handled")
        return replace(good, processes={"a": a, "b": Process([again])}).faults()

    assert with_second() == []
    found = with_second(Call("a", b"other", 4, 1, 750, 760, "handled"))
    assert any(fault.startswith("again: b at 900: offset 3") for fault in found)


@pytest.mark.parametrize(
    "change",
    [
        lambda letters: [*letters, letters[-1]],
        lambda letters: letters[::-1],
        lambda letters: [Letter(KEY, 1, "ValueError"), *letters],
        lambda letters: [*letters, Letter(KEY, 0, "")],
        lambda letters: [replace(letters[0], error=""), letters[1]],
        lambda letters: letters[:1],
    ],
    ids=["twice", "out of order", "too early", "before it", "no reason", "lost"],
)
def test_letters_that_must_not_be(change: Callable[[Sequence[Letter]], list[Letter]]) -> None:
    good = sequence()
    assert replace(good, letters=change(good.letters)).faults()


def test_a_record_that_is_handled_behind_its_sequence() -> None:
    (fault, *_) = replace(history(policy="sequences"), letters=sequence().letters).faults()
    assert fault.endswith("was handled, behind 2")


def test_a_letter_of_a_good_record() -> None:
    assert replace(history(), letters=[Letter(KEY, 1, "x"), *history().letters]).faults() == [
        "letters: offset 1 (fails 1) is one"
    ]


def test_what_was_committed_stays_so() -> None:
    first = Look(1, 10, frozenset({12, 13}))
    assert set_back([first, Look(2, 10, frozenset({12, 13})), Look(3, 13, frozenset({13}))]) == []
    assert set_back([first, Look(2, 9, first.above)]) == [
        "the stable offset went back from 10 to 9"
    ]
    assert len(set_back([first, Look(2, 10, frozenset({13}))])) == 1


def test_a_member_that_is_not_fenced() -> None:
    """It returns what another one has committed, and only the observer knows."""
    observer = Observer(Mock(), "t", "g", lambda _: KEY, [Look(50, 5, frozenset({7}))])

    def anomalies(offset: int, time: int) -> int:
        zombie = Events([Delivery(time, TopicPartition("t", 0), offset, KEY)], has_callbacks=False)
        processes = {"zombie": zombie, "observer": observer.events()}
        return len(check_history(History(processes=processes)))

    assert anomalies(4, 60) == anomalies(7, 60) == 1
    assert anomalies(4, 40) == anomalies(6, 60) == 0


def test_outputs_that_must_not_be() -> None:
    good = [(0, b"a"), (1, b"b"), (2, b"a")]
    assert faults_of_outputs(good, range(3)) == []
    assert faults_of_outputs([*good, good[1]], range(3)) == ["offset 1 has 2 outputs"]
    assert faults_of_outputs(good[:2], range(3)) == ["offset 2 has no output"]
    assert faults_of_outputs(good, [0, 1]) == ["offset 2 is to have none"]
    assert faults_of_outputs(good[::-1], range(3)) == ["b'a': offset 0 comes after 2"]


# -- a query --------------------------------------------------------------------------------------

QUERY = """\
planning 100
batch 120 0
record 121 0 0 6b
record 122 0 2 6c
done 123 0
planning 200
planning 210
batch 220 1
record 221 0 3 6b
done 222 1
"""
AGAIN = QUERY[QUERY.index("batch 220") :].replace("22", "32")


def faults_of_query(text: str, *looks: Look) -> list[str]:
    return faults_of_batches(batches_of([line.split() for line in text.splitlines()]), looks)


def test_batches_that_may_be() -> None:
    assert faults_of_query(QUERY + AGAIN) == []
    assert faults_of_query(QUERY, Look(150, 3), Look(205, 3)) == []
    assert faults_of_query(QUERY, Look(215, 4)) == []  # it was planned already
    assert faults_of_query(QUERY + AGAIN, Look(300, 4)) == []  # Spark had not noted its end


@pytest.mark.parametrize(
    ("text", "look"),
    [
        (QUERY, Look(205, 4)),
        (QUERY, Look(205, 1, frozenset({3}))),
        (QUERY + AGAIN.replace("0 3 6b", "0 4 6b"), Look(0, 0)),
        (QUERY + AGAIN.replace("record 321 0 3 6b\n", ""), Look(0, 0)),
        (QUERY.replace("0 3 6b", "0 0 6b"), Look(0, 0)),
        (QUERY.replace("20 0", "20 1").replace("20 1\nrecord 221", "20 0\nrecord 221"), Look(0, 0)),
    ],
    ids=["committed", "committed above", "other records", "fewer", "not in order", "batch before"],
)
def test_a_batch_that_must_not_be(text: str, look: Look) -> None:
    assert faults_of_query(text, look)


# -- residents ------------------------------------------------------------------------------------


def test_what_has_grown_between_the_second_quarter_and_the_last() -> None:
    def sample(more: int) -> dict[str, Measure]:
        bounds = GROWTH.items()
        return {role: Measure(100 + more * most.anonymous, 10, 10) for role, most in bounds}

    flat = [sample(0)] * 12
    assert grown(flat) == []
    assert grown([sample(9), sample(9), *flat]) == []  # the first quarter is the start
    assert grown([*flat[:-1], sample(9)]) == []  # one sample is no median
    assert grown([*[sample(0)] * 6, sample(1), sample(1)]) == []
    found = grown([*[sample(0)] * 6, sample(2), sample(2)])
    assert [text.split(":")[0] for text in found] == list(GROWTH)


def test_the_name_of_a_mode_means_it_alone() -> None:
    for mode in HISTORIES:
        assert modes_of(mode) == [mode]
    assert modes_of("implici") == ["implicit", "implicit, commit()"]
    assert modes_of("") == [*HISTORIES]
    assert not modes_of("none such")


def test_a_slow_start_is_no_stillness() -> None:
    still = Stillness(10, 0.0, seconds=150, start_seconds=600)
    assert not still.is_over(500, 10, is_starting=True)
    assert not still.is_over(649, 10)
    assert still.is_over(650, 10)


def test_what_goes_on_is_not_still() -> None:
    still = Stillness(10, 0.0, seconds=150, start_seconds=600)
    for now in range(100, 1_000, 100):
        assert not still.is_over(now, 10 - now // 100)
    assert still.is_over(1_050, 1)


def test_starts_do_not_go_on_for_ever() -> None:
    """A query that ends again and again before its first batch starts anew each time."""
    still = Stillness(10, 0.0, seconds=150, start_seconds=600)
    looks = [still.is_over(now, 10, is_starting=now % 100 > 10) for now in range(10, 1_000, 10)]
    assert 600 < 10 * looks.index(True) < 800
    still = Stillness(10, 0.0, seconds=150, start_seconds=600)
    assert not still.is_over(500, 10, is_starting=True)
    assert not still.is_over(510, 9, is_starting=True)
    assert not still.is_over(1_000, 9, is_starting=True)


def test_begun_batches(tmp_path: Path) -> None:
    file = tmp_path / "query-000"
    assert begun_batches(file) == 0
    file.write_text("planning 1\nbatch 2 0\nrecord 3 0 0 6b\ndone 4 0\nplanning 5\nbatch 6 1\n")
    assert begun_batches(file) == 2
