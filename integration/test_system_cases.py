"""Some cases of Kafka's system tests for consumers (:mod:`integration.system_cases` has all)."""

from pathlib import Path

import pytest

from integration.kafka import KafkaBroker
from integration.system_cases import CASES, consumer_bounce

SHORT = (
    "consumer_failure[is_clean=False, auto_commit=False, is_shared=True]",
    "fencing_static_consumer[conflicts=1, stage=stable, is_shared=False]",
)


@pytest.mark.parametrize("name", SHORT)
def test_a_case_of_kafkas_system_tests(broker: KafkaBroker, tmp_path: Path, name: str) -> None:
    CASES[name](broker, tmp_path)


def test_consumers_are_restarted_one_by_one(broker: KafkaBroker, tmp_path: Path) -> None:
    kwargs = {"is_clean": True, "is_shared": False}
    consumer_bounce(broker, tmp_path, mode="rolling", bounces=1, **kwargs)
