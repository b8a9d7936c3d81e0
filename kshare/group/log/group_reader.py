"""The records of one group in a partition of the log, which several groups share."""

import json
from typing import Final

from kshare.core.progress import TopicPartition
from kshare.errors import CommitLogError
from kshare.group.protocol.log import GroupLog
from kshare.group.protocol.record_codec import decode, decode_key

__all__ = ["LIFE_SECONDS", "GroupReader"]

LIFE_SECONDS: Final = 30.0
"""A member that has not said for so long that it is alive is dead."""


class GroupReader:
    """Applies the records of one group; others in the same partition are passed over.

    A record that cannot be read may be deleted by a tombstone that follows: compaction takes its
    time. So it is a fault only at the end of the log.

    Args:
        partition: The log's partition.
        log: Takes the records.
        keeps_keys: Whether to know the keys of all records, for who deletes them.
    """

    def __init__(
        self, partition: TopicPartition, log: GroupLog, *, keeps_keys: bool = False
    ) -> None:
        self.log = log
        self._partition = partition
        # Every key begins with version, group and incarnation, whatever the version.
        self._mark = f",{json.dumps(log.group, ensure_ascii=False)},".encode()
        self._damaged: dict[bytes, CommitLogError] = {}
        self._keeps_keys = keeps_keys
        self._keys: dict[bytes, None] = {}

    @property
    def keys(self) -> list[bytes]:
        """The keys of all records that are not deleted, if it keeps them."""
        return list(self._keys)

    def apply(self, offset: int, key: bytes, value: bytes | None) -> None:
        """Apply a record if it is one of the group's."""
        if self._mark not in key[: len(self._mark) + 24]:
            return
        self._damaged.pop(key, None)
        if value is None:
            self._keys.pop(key, None)
        elif self._keeps_keys:
            self._keys[key] = None
        try:
            group, parsed = decode_key(key)
            if group == self.log.group:
                record = None if value is None else decode(key, value)[1]
                self.log.apply(offset, parsed, record)
        except CommitLogError as error:
            if value is not None:
                self._damaged[key] = type(error)(
                    f"{self._partition}, offset {offset}, group {self.log.group}: {error}; if it "
                    f"is damaged, kshare offsets drop --group {self.log.group} deletes the "
                    "group's records"
                )

    def check(self) -> None:
        """Raise the fault of a record that cannot be read, at the end of the log.

        Raises:
            CommitLogError: It cannot be read.
        """
        for error in self._damaged.values():
            raise error
