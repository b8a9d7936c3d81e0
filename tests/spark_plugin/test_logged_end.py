"""Where the offset log ends, in the calls of Spark 4.0 and 4.1 as they were recorded."""

import re

import pytest

from kshare.errors import KshareError
from spark_plugin.plain_reader import WRAPPER, LoggedEnd

# What Spark 4.0.2 and 4.1.4 called for a query over a log that ends at the number after `latest`,
# and where the batch that is asked for has to start. A query that starts anew begins at 0.
RECORDED = {
    "a new query": """
        latest 5 from 0, initial, partitions 0 5, latest 5 from 5, latest 7 from 5, commit 5,
        partitions 5 7, latest 7 from 7, latest 9 from 7, commit 7, partitions 7 9""",
    "a restart": """
        partitions 9 9, latest 20 from 9, commit 9, partitions 9 20, latest 20 from 20,
        latest 21 from 20, commit 20, partitions 20 21""",
    "a restart without anything new": "partitions 30 30, latest 30 from 30, latest 30 from 30",
    "a restart amid a batch": """
        partitions 25 25, partitions 21 25, latest 30 from 25, commit 25, partitions 25 30,
        latest 30 from 30""",
    "a restart amid the first batch": """
        partitions 5 5, initial, partitions 0 5, latest 6 from 5, commit 5, partitions 5 6""",
    "availableNow, as one batch": "latest 5 from 0, initial, partitions 0 5",
    "availableNow, restart": "partitions 5 5, latest 20 from 5, commit 5, partitions 5 20",
    "availableNow, restart amid a batch": "partitions 25 25, partitions 20 25",
    "batches without data, for state": """
        latest 5 from 0, initial, partitions 0 5, latest 5 from 5, commit 5, latest 5 from 5,
        latest 7 from 5, commit 5, partitions 5 7, latest 7 from 7, commit 7, latest 7 from 7""",
    "a frame read twice": """
        latest 5 from 0, initial, partitions 0 5, partitions 0 5, latest 7 from 5, commit 5,
        partitions 5 7, partitions 5 7, latest 9 from 7""",
    "batches that the optimizer empties": """
        latest 5 from 0, initial, latest 5, latest 7 from 5, commit 5, latest 9 from 7, commit 7,
        latest 12 from 9""",
    "a restart of them": "partitions 9 9, latest 12 from 9, commit 9, latest 13 from 12",
    "a first batch without rows": """
        latest 0 from 0, initial, partitions 0 0, latest 7 from 0, commit 0, partitions 0 7""",
    "a first batch without rows, emptied": "latest 0 from 0, initial, latest 0, latest 7 from 0",
    "batches without data after an emptied one": """
        latest 5 from 0, initial, latest 5, commit 5, latest 9 from 5, commit 5""",
    "earlier frames that are planned again": """
        latest 5 from 0, initial, partitions 0 5, latest 7 from 5, partitions 0 5, commit 5,
        partitions 0 5, partitions 5 7, partitions 0 5, latest 9 from 7, commit 7, partitions 5 7,
        partitions 0 5, partitions 7 9, latest 9 from 9""",
    "ends that are asked for more often": """
        latest 5 from 0, latest 5, initial, partitions 0 5, latest 7 from 5, latest 7, latest 7,
        commit 5, partitions 5 7""",
}

WRAPPED = {
    "a new query": "latest 5 from 0, initial, latest 5",
    "a new query, by its first batch": "latest 5 from 0, initial",
    "a restart": "latest 20 from 0",
}
REFUSES = {
    "a new query": "initial",
    "a new query, by its first batch": "initial",
    "a restart": "partitions 5 5",
}

UNKNOWN = {
    "a batch that starts before the log's end": (
        "partitions 9 9, latest 20 from 9",
        "partitions 5 20",
    ),
    "a batch that starts where no batch ends": (
        "latest 5 from 0, initial, partitions 0 5, latest 9 from 5",
        "partitions 4 9",
    ),
    "a first batch with another end": ("latest 5 from 0, initial", "partitions 0 4"),
    "a commit of another batch": ("partitions 9 9, latest 20 from 9", "commit 5"),
    "a commit before anything": ("", "commit 5"),
    "a commit before the first batch": ("latest 5 from 0", "commit 5"),
}


class Query:
    """Makes calls that are written as above; ``latest 7 from 5`` also says what has to follow."""

    def __init__(self) -> None:
        self.known: LoggedEnd[int] = LoggedEnd(lambda: 0, "Spark 4.0.2")

    def call(self, text: str) -> None:
        name, *numbers = re.findall(r"\w+", text)
        offsets = [int(number) for number in numbers if number.isdecimal()]
        if name == "latest":
            self.latest(offsets)
        elif name == "initial":
            self.known.initial_asked()
        elif name == "partitions":
            self.known.planned(*offsets)
        else:
            self.known.committed(*offsets)

    def latest(self, offsets: list[int]) -> None:
        starts: list[int] = []

        def end_after(start: int) -> int:
            starts.append(start)
            return offsets[0]

        assert self.known.next_end(end_after) == offsets[0]
        assert starts == offsets[1:]

    def run(self, calls: str) -> None:
        for text in filter(None, map(str.strip, calls.split(","))):
            self.call(text)


@pytest.mark.parametrize("calls", RECORDED.values(), ids=RECORDED)
def test_recorded_calls(calls: str) -> None:
    Query().run(calls)


@pytest.mark.parametrize("case", WRAPPED)
def test_the_wrapper_of_available_now_is_refused(case: str) -> None:
    query = Query()
    query.run(WRAPPED[case])
    if case == "a new query, by its first batch":
        query.run("latest 5")
    with pytest.raises(KshareError, match=f"Spark 4.0.2 .*{re.escape(WRAPPER)}"):
        query.call(REFUSES[case])


@pytest.mark.parametrize("case", UNKNOWN)
def test_another_order_is_an_error(case: str) -> None:
    calls, wrong = UNKNOWN[case]
    query = Query()
    query.run(calls)
    with pytest.raises(KshareError, match=r"Spark 4\.0\.2 calls (partitions|commit)"):
        query.call(wrong)
