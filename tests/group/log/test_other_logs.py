"""Offsets that are anchored in another log than the one that was read."""

from collections.abc import Sequence
from typing import Any

import pytest

from kshare.errors import KafkaError, KshareError
from kshare.group.log.other_logs import OtherLogs
from tests.support.groups import GROUP, LOG, T0


class Topics:
    """A cluster that does not answer at first."""

    def __init__(self) -> None:
        self.silent = 1

    def topics(self) -> Sequence[str]:
        self.silent -= 1
        if self.silent >= 0:
            raise KafkaError("timed out")
        return ["logs.other", LOG]

    def partitions(self, _: object) -> None:
        pass

    def topic_ids(self) -> dict[str, str]:
        return {"logs.other": "other", LOG: "own"}


def test_a_log_that_could_not_be_looked_up_is_not_gone() -> None:
    cluster: Any = Topics()
    others, anchored = OtherLogs(cluster, GROUP, LOG), {T0: "other"}
    with pytest.raises(KafkaError, match="timed out"):
        others.homes(anchored)
    assert others.homes(anchored) == {T0: "logs.other"}
    with pytest.raises(KshareError, match=f"belong to the log logs.other, not to {LOG}"):
        others.check(anchored, anchored)
    assert others.homes({T0: "gone"}) == {}
