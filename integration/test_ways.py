"""Members that receive in all ways are killed and stopped: what they return is judged when it is.

Nothing is excused, neither during rebalances nor after faults. ``python -m integration.soak_ways``
does the same for longer, with brokers that are killed and frozen.
"""

import random
from contextlib import closing
from pathlib import Path

import pytest

from integration.kafka import KafkaBroker
from integration.members import Group, end_all
from integration.soak_ways import await_all, chaos, faults_of_outputs


@pytest.mark.parametrize("mode", ["implicit, commit()", "explicit, one of a key"])
def test_members_return_only_what_nobody_else_has_returned(
    broker: KafkaBroker, topic: str, tmp_path: Path, mode: str
) -> None:
    with closing(Group(broker, topic, tmp_path)) as group:
        total = chaos(group, mode, 15, random.Random(len(mode)))
        await_all(group, total)
        end_all(group)
        assert group.faults_of_returns() == []


def test_transactional_members_write_each_output_once(
    broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    with closing(Group(broker, topic, tmp_path, output=broker.create_topic())) as group:
        total = chaos(group, "transactions", 10, random.Random(3))
        await_all(group, total)
        end_all(group)
        assert [*group.faults_of_returns(), *faults_of_outputs(group, total)] == []
