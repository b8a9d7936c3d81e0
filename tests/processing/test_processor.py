"""A processor's arguments."""

from typing import Any

import pytest

from kshare.errors import OptionsError
from kshare.processing import DeadLetter, Processor, Retry


def test_all_faults_are_listed_at_once() -> None:
    wrong: Any = Processor
    with pytest.raises(OptionsError) as fault:
        wrong(
            None,
            concurrency=0,
            timeout="soon",
            retry=Retry(attempts=0, first="10s", most="1s", jitter=2),
            on_failure=DeadLetter(""),
            order="time",
            batch_size=0,
            max_records=-1,
            drain_timeout=0,
        )
    named = [problem.split(" is ")[0].split("=")[0] for problem in fault.value.problems]
    assert named == [
        "handler",
        "concurrency",
        "order",
        "on_failure",
        "batch_size",
        "max_records",
        "Retry: attempts",
        "Retry: jitter",
        "Retry: most",
        "timeout",
        "drain_timeout",
    ]
