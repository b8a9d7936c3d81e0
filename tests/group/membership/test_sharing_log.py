"""What a member logs of its group: each change once."""

import logging

import pytest

from kshare.group.membership.sharing_log import SharingLog


def test_each_change_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kshare.group")
    said = SharingLog("billing")
    for shares in (None, False, False, None, True, True, False):
        said.assigned(shares)
    assert [(each.levelname, "whole" in each.message) for each in caplog.records] == [
        ("WARNING", True),
        ("INFO", False),
        ("WARNING", True),
    ]


def test_the_leader_names_plain_consumers_and_refusals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kshare.group")
    said = SharingLog("billing")
    said.planned({}, ("rdkafka-1", "rdkafka-2"))
    said.planned({}, ("rdkafka-1", "rdkafka-2"))
    said.planned({"c": "member c speaks version 2"})
    assert [each.message for each in caplog.records] == [
        "group billing: no kshare consumers: rdkafka-1, rdkafka-2",
        "group billing: member c speaks version 2",
    ]
