"""The count of a topic's parked keys."""

import pickle

from kshare.core.parked import ParkedCount


def test_a_count_travels_from_the_planner_to_the_driver() -> None:
    for count in (ParkedCount(3), ParkedCount(1, 1_700_000_000.5)):
        assert pickle.loads(pickle.dumps(count)) == count
    assert ParkedCount(3).since is None
