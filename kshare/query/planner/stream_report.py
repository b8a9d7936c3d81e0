"""A stream in Spark's progress events: the last batch that was planned, and where logs end."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kshare.core.checkpoint import BatchOffsets
from kshare.core.listing import ParkedCount
from kshare.core.progress import TopicPartition
from kshare.core.slicing import RangeObservation
from kshare.monitor.report import encode_report, partition_report
from kshare.monitor.retention import RetentionWatch
from kshare.query.planner.key_selection import KeySelection

__all__ = ["StreamReport"]


class StreamReport:
    """What progress events show of a stream.

    See :mod:`kshare.monitor.report`.

    Args:
        retention: Says which partitions are at risk.
        observed: What tasks have reported of a partition's ranges.
        gaps_max: The most individual commits that a partition may have in the checkpoint.
    """

    def __init__(
        self,
        retention: RetentionWatch,
        observed: Callable[[TopicPartition], Sequence[RangeObservation]],
        gaps_max: int,
    ) -> None:
        self._retention = retention
        self._observed = observed
        self._gaps_max = gaps_max
        self._parked: Mapping[str, ParkedCount] = {}
        self._keys = KeySelection()
        self._ends: Mapping[TopicPartition, int] = {}
        self._offsets = BatchOffsets(progress={})

    def wait(self, ends: Mapping[TopicPartition, int]) -> None:
        """Record where the partitions end while no batch is planned."""
        self._ends = ends

    def batch(
        self,
        ends: Mapping[TopicPartition, int],
        after: BatchOffsets,
        parked: Mapping[str, ParkedCount],
        keys: KeySelection,
    ) -> None:
        """Record a batch.

        Args:
            ends: The ends of its partitions.
            after: What its dict says.
            parked: The parked keys of each topic that has some.
            keys: Which of them the query reads.
        """
        self._ends, self._offsets = ends, after
        self._parked, self._keys = parked, keys

    def encoded(self) -> dict[str, Any] | None:
        """The ends as Spark's own source reports them; None if there are none yet.

        The ranges of partitions that are uneven, limited, observed or at risk are added, and those
        of topics with parked keys.
        """
        if not self._ends:
            return None
        reports, at_risk = {}, self._retention.at_risk
        for tp, reached in self._offsets.progress.items():
            limits, seen = self._offsets.limits.get(tp, ()), self._observed(tp)
            parked = self._parked.get(tp.topic)
            is_shown = limits or seen or tp in at_risk or parked or not reached.is_level
            if is_shown and tp in self._ends:
                reports[tp] = partition_report(
                    self._ends[tp],
                    reached,
                    limits,
                    seen,
                    at_risk_from=at_risk.get(tp),
                    gaps_max=self._gaps_max,
                    parked=parked,
                    parked_hashes=self._keys.parked(tp),
                )
        return encode_report(reports, self._ends)
