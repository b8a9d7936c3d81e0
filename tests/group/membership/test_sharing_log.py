"""What a member logs of its group: each change once."""

from kshare.group.core.member import Level
from kshare.group.membership.leader import SharingLog


def test_each_change_is_said_once() -> None:
    texts: list[tuple[Level, str]] = []
    said = SharingLog(lambda *each: texts.append(each))
    for shares in (None, False, False, None, True, True, False):
        said.assigned(shares)
    assert [(level, "whole" in text) for level, text in texts] == [
        (Level.WARNING, True),
        (Level.INFO, False),
        (Level.WARNING, True),
    ]


def test_the_leader_names_plain_consumers_and_refusals() -> None:
    texts: list[tuple[Level, str]] = []
    said = SharingLog(lambda *each: texts.append(each))
    said.planned({}, ("rdkafka-1", "rdkafka-2"))
    said.planned({}, ("rdkafka-1", "rdkafka-2"))
    said.planned({"c": "member c speaks version 2"})
    assert texts == [
        (Level.INFO, "no kshare consumers: rdkafka-1, rdkafka-2"),
        (Level.WARNING, "member c speaks version 2"),
    ]
