"""Members that receive in all ways are killed and suspended: what they return is judged when it is.

Nothing is excused, neither during rebalances nor after faults; of handlers, only what was called
again after its process was disturbed. ``python -m integration.histories`` does the same for longer,
with quotas, brokers that are killed and frozen, and a log that is compacted.
"""

import random
from pathlib import Path

import pytest

from integration.handler_histories import handlers_round
from integration.handler_process import POLICIES
from integration.kafka import KafkaBroker
from integration.member_histories import members_round


@pytest.mark.parametrize("mode", ["implicit, commit()", "explicit"])
def test_members_return_only_what_nobody_else_has_returned(
    broker: KafkaBroker, tmp_path: Path, mode: str
) -> None:
    assert members_round(mode, broker, None, 15, random.Random(len(mode)), tmp_path).faults == []


@pytest.mark.parametrize("mode", ["plain", "plain, commit()"])
def test_members_without_a_log_have_each_partition_alone(
    broker: KafkaBroker, tmp_path: Path, mode: str
) -> None:
    """The group's coordinator alone says who has what; members are suspended for longer, too."""
    assert members_round(mode, broker, None, 15, random.Random(6), tmp_path).faults == []


def test_transactional_members_write_each_output_once(broker: KafkaBroker, tmp_path: Path) -> None:
    assert members_round("transactions", broker, None, 10, random.Random(3), tmp_path).faults == []


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_handlers_by_key_whose_processes_die(
    broker: KafkaBroker, tmp_path: Path, policy: str
) -> None:
    assert handlers_round(policy, broker, None, 15, random.Random(5), tmp_path).faults == []


@pytest.mark.long
def test_processes_take_key_ranges_over_from_the_living(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    assert members_round("assign", broker, None, 15, random.Random(4), tmp_path).faults == []
