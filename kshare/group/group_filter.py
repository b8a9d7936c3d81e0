"""The records of one group in a partition of the log, which several groups share."""

import json
from typing import Any, Final

from kshare.group.log_tail import Row
from kshare.group.protocol.records import Key, decode, decode_key

__all__ = ["LIFE_SECONDS", "GroupFilter"]

LIFE_SECONDS: Final = 30.0
"""A member that has not said for so long that it is alive is dead."""


class GroupFilter:
    """Reads the records of one group; others in the same partition are passed over.

    Args:
        group: Id of the group.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        # Every key begins with version, group and incarnation, whatever the version.
        self._mark = f",{json.dumps(group, ensure_ascii=False)},".encode()

    def is_candidate(self, key: bytes) -> bool:
        """Whether a key may be one of the group's."""
        return self._mark in key[: len(self._mark) + 24]

    def read(self, row: Row) -> tuple[Key, Any] | None:
        """The key and the record, None for a tombstone; None if it is another group's.

        Raises:
            CommitLogError: It cannot be read.
        """
        if not self.is_candidate(row.key):
            return None
        if row.value is None:
            group, key = decode_key(row.key)
            return (key, None) if group == self._group else None
        group, record = decode(row.key, row.value)
        return (decode_key(row.key)[1], record) if group == self._group else None
