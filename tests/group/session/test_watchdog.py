"""What stands still is said once, with the reason."""

from kshare.core.hashing import WHOLE, KeyRanges, split
from kshare.group.protocol.records import Claim
from kshare.group.session.presence import Watchdog
from tests.group.core.test_ownerships import claim_written, ownerships, run, write
from tests.support.groups import T0, T1, UPPER

QUARTERS = split(WHOLE, 4)


def test_hashes_that_nobody_claims_are_named_once() -> None:
    owned = ownerships()
    watchdog = Watchdog(owned)
    owned.claim({T0: KeyRanges([QUARTERS[0]])})
    run(owned)
    assert T0 in owned.started()
    write(owned, Claim(T0, "other#1", KeyRanges([QUARTERS[1]])))
    write(owned, Claim(T0, "dead#1", KeyRanges([QUARTERS[2]])))
    for now in (0.0, 5.0, 9.9):
        watchdog.warn_of_unclaimed(now, {"m", "other"})
    assert not owned.warnings
    for now in (10.0, 20.0, 60.0):
        watchdog.warn_of_unclaimed(now, {"m", "other"})
    (said,) = owned.warnings
    assert f"orders-0: no living member has claimed key hashes {UPPER}" in said
    watchdog.warn_of_unclaimed(61.0, {"m", "other", "dead"})
    watchdog.warn_of_unclaimed(71.5, {"m", "other", "dead"})
    assert str(QUARTERS[3]) in owned.warnings[1]


def test_a_start_that_takes_long_is_said_once_with_the_reason() -> None:
    owned = ownerships()
    watchdog = Watchdog(owned)
    owned.claim({T0: KeyRanges([UPPER])})
    for now in (1.0, 2.0, 10.9):
        watchdog.warn_of_starts(now, "")
    assert not owned.warnings
    for now in (11.0, 12.0, 60.0):
        watchdog.warn_of_starts(now, "cannot write to log: no leader")
    (said,) = owned.warnings
    assert said == (
        "group g, orders-0: no record is delivered yet, 10 s after it was assigned: its claim "
        "is not in the log yet (cannot write to log: no leader)"
    )
    claim_written(owned)
    run(owned)
    watchdog.warn_of_starts(80.0, "")
    owned.claim({T0: KeyRanges([UPPER]), T1: KeyRanges([UPPER])})
    watchdog.warn_of_starts(90.0, "")
    watchdog.warn_of_starts(100.0, "")
    assert [text.split(":")[0] for text in owned.warnings[1:]] == [f"group g, {T1}"]
