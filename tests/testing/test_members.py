"""What the integration tests make of the lines that a member's process writes."""

from pathlib import Path
from unittest.mock import Mock

from integration.members import Member
from kshare.testing.history.model import Delivery, OwnerChange


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
