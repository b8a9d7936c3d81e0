"""Records of a group's log that cannot be read, for who deletes them while members live.

Most can be deleted at any time. A claim that is deleted counts as given up, and one that cannot be
read does not: who has read that it cannot be, claims anew and waits. So it is deleted only when all
members have read that, or have stopped as they had not read the log for so long.
"""

import logging
import time

from kshare.core.waits import Wait
from kshare.errors import CommitLogError
from kshare.group.config.table import CLAIM_TIMEOUT_MS
from kshare.group.protocol.commit_log.group_reader import GroupReader
from kshare.group.protocol.commit_log.log import GroupLog
from kshare.group.protocol.commit_log.record_codec import decode_key
from kshare.group.protocol.commit_log.records import Key
from kshare.group.protocol.commit_log.shared_settings import largest
from kshare.kafka.protocol.wait_log import WaitLog

__all__ = ["await_readers", "damaged_records", "is_claim", "topic_of"]

_log = logging.getLogger("kshare.group")


def damaged_records(reader: GroupReader, topic: str | None) -> dict[bytes, int]:
    """Keys and offsets of the records that cannot be read, of one topic or of all."""
    damaged = reader.damaged.items()
    return {key: offset for key, offset in damaged if topic in {None, topic_of(key)}}


def await_readers(log: GroupLog) -> None:
    """Wait until all members have read the log as it is, or have stopped as they have not.

    Args:
        log: What the log says; its members say their ``claim.timeout.ms``.
    """
    said = (member.settings for member in log.members.values())
    seconds = largest("claim.timeout.ms", said, CLAIM_TIMEOUT_MS) / 1000
    waits = WaitLog(_log, f"group {log.group}")
    state = "its members read which claims cannot be read, before these are deleted"
    waits.wait(Wait(state, "claim.timeout.ms is over"), lasts=seconds)
    _let_pass(seconds)
    waits.over()


def is_claim(key: bytes) -> bool:
    """Whether a record is a claim, as far as its key can be read."""
    parsed = _parsed(key)
    return parsed is not None and parsed.kind == "claim"


def topic_of(key: bytes) -> str | None:
    """The topic that a record speaks of; None if it speaks of none, or does not say."""
    parsed = _parsed(key)
    return None if parsed is None or parsed.partition is None else parsed.partition.topic


def _parsed(key: bytes) -> Key | None:
    try:
        return decode_key(key)[1]
    except CommitLogError:  # what is damaged is deleted without a topic
        return None


def _let_pass(seconds: float) -> None:
    """Let time pass."""
    time.sleep(seconds)
