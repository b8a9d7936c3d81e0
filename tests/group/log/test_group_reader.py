"""Reading the records of one group: what is kept of them."""

import pytest

from kshare.core.hashing import WHOLE
from kshare.core.progress import TopicPartition
from kshare.group.protocol.log import GroupLog
from kshare.group.protocol.record_codec import GroupReader, encode
from kshare.group.protocol.records import Claim
from tests.support.groups import T0


@pytest.mark.parametrize("keeps_keys", [False, True])
def test_keys_are_kept_for_those_alone_who_delete_records(keeps_keys: bool) -> None:
    """Members read logs of any length and never ask for them."""
    claim = Claim(T0, "m1", (WHOLE,))
    reader = GroupReader(TopicPartition("log", 0), GroupLog("g"), keeps_keys=keeps_keys)
    key, value = encode("g", claim)
    reader.apply(0, key, value)
    assert list(reader.log.of(T0).claims) == ["m1"]
    assert reader.keys == [key] * keeps_keys
    reader.apply(1, key, None)
    assert reader.keys == []
