"""What the integration tests make of the lines that a member's process writes."""

import signal
from pathlib import Path
from unittest.mock import Mock

from integration.history.model import Delivery, OwnerChange
from integration.members import Member


def test_what_a_signal_handler_writes_amid_the_records_of_a_call_comes_after_them(
    tmp_path: Path,
) -> None:
    file = tmp_path / "member"
    file.write_text(
        "assigned 10 1.0000 0 log:3\n"
        "record 20 0 5 6b\n"
        "closing 30\n"
        "revoked 31 1.0000 0\n"
        "record 21 0 6 6b\n"
    )
    member = Member(Mock(), file)
    kinds = [type(line) for line in member.events("t", is_strict=True).lines]
    assert kinds == [OwnerChange, Delivery, Delivery, OwnerChange]


def test_a_member_that_claims_anew_is_as_one_that_was_suspended(tmp_path: Path) -> None:
    """What it has not committed comes again."""
    file = tmp_path / "member"
    file.write_text("record 20 0 5 6b\nanew 30\nrecord 40 0 5 6b\n")
    member = Member(Mock(), file)
    member.signal(signal.SIGCONT)
    assert member.events("t", is_strict=True).resumed == [30]
    assert member.events("t").resumed == [30, *member.resumed]
