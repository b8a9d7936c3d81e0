"""Pending work as slices."""

import random

from tests.support.planner import Log, Query


def test_a_range_of_one_key_is_not_cut() -> None:
    """rangeAssignor=adaptive gives a hot key a range of its own, and no key is ever cut."""
    log, rng = Log(), random.Random(1)
    query = Query(log, keyRanges="4", rangeAssignor="adaptive", maxRecordsPerPartition="100")
    for _ in range(3):
        log.grow(rng.choice([b"hot", b"hot", b"k%d" % rng.randrange(1000)]) for _ in range(2000))
        widths = [planned.slice.hashes.width for planned in query.trigger()]
    assert 1 in widths
    query.check_all()
