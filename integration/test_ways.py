"""Members that receive in all ways are killed and stopped: what they return is judged when it is.

Nothing is excused, neither during rebalances nor after faults. ``python -m integration.histories``
does the same for longer, with brokers that are killed and frozen.
"""

import random
from pathlib import Path

import pytest

from integration.kafka import KafkaBroker
from integration.member_histories import members_round


@pytest.mark.parametrize("mode", ["implicit, commit()", "explicit, one of a key"])
def test_members_return_only_what_nobody_else_has_returned(
    broker: KafkaBroker, tmp_path: Path, mode: str
) -> None:
    assert members_round(mode, broker, None, 15, random.Random(len(mode)), tmp_path).faults == []


def test_transactional_members_write_each_output_once(broker: KafkaBroker, tmp_path: Path) -> None:
    assert members_round("transactions", broker, None, 10, random.Random(3), tmp_path).faults == []
