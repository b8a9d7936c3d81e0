"""What Spark 4.0 or 4.1 leaves unread of a query that it ends after one batch: a line at WARNING.

There Trigger.AvailableNow and Trigger.Once are one batch for every source in Python. The source
cannot say what that left: Spark calls it as for any other trigger, and kills its process, with the
pipe of its log, when the query ends. The driver can: its JVM knows the trigger.

Guarantees: a query with another trigger hears nothing, and nothing here raises.
Cost: when a query starts, some ten calls of the JVM; when one of these triggers has ended, one look
at its topics, of at most some seconds.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import SparkSession

from kshare.core.checkpoint import BatchOffsets
from kshare.format_name import is_ours
from spark_plugin.spark_api import SPARK, streaming_leaves

if TYPE_CHECKING:
    from kshare.monitor.status import Status

__all__ = ["ONE_BATCH", "OneBatchWatch"]

_log = logging.getLogger("kshare")
ONE_BATCH: Final = {"AvailableNowTrigger", "OneTimeTrigger"}
_WAIT_MS: Final = 5_000


@dataclass(slots=True)
class _Run:
    """A run of a query in one batch.

    Attributes:
        options: Of each kshare source, in the order of the plan.
        batch: Number of the batch that has ended; None before.
        planned_ms: When it was planned, in milliseconds since 1970.
        ends: Where its kshare sources ended.
    """

    options: list[dict[str, str]]
    batch: int | None = None
    planned_ms: int = 0
    ends: list[BatchOffsets] = field(default_factory=list)


class OneBatchWatch:
    """Follows the queries of a session that Spark ends after one batch.

    Args:
        session: Return the session of the queries; None if there is none.
    """

    def __init__(
        self, session: Callable[[], SparkSession | None] = SparkSession.getActiveSession
    ) -> None:
        self._session = session
        self._runs: dict[str, _Run] = {}

    def started(self, query: str, run: str) -> None:
        """Take note of a query that starts, if its trigger is one of these.

        Args:
            query: Its id.
            run: The id of this run.
        """
        session = self._session()
        found: Any = None if session is None else session.streams.get(query)
        jvm = getattr(found, "_jsq", None)
        if jvm is None:  # of another session, or of Spark Connect
            return
        execution = jvm.streamingQuery()
        if execution.trigger().toString() in ONE_BATCH:
            options = list(_options(execution.analyzedPlan()))
            if options:
                self._runs[run] = _Run(options)
            if any(name.lower() == "realtime" for each in options for name in each):
                _log.warning(
                    "query %s: with realTime it reads what comes, and its trigger reads what is "
                    "there: %s runs one batch of that time. Leave out realTime, or the trigger",
                    query,
                    SPARK,
                )

    def ended_batch(
        self, run: str, batch: int, timestamp: str, ends: Iterable[BatchOffsets | None]
    ) -> None:
        """Take note of a batch that has ended.

        Args:
            run: The id of the run.
            batch: The number of the batch.
            timestamp: When it was planned, as events say it.
            ends: Where the sources of the query ended; None for those of others.
        """
        known = self._runs.get(run)
        if known is not None:
            known.batch = batch
            known.planned_ms = round(datetime.fromisoformat(timestamp).timestamp() * 1000)
            known.ends = [end for end in ends if end is not None]

    def ended(self, name: str, run: str, *, failed: bool) -> None:
        """Say what a query that has ended left unread, if it left something.

        Args:
            name: The query's name or id, for the log.
            run: The id of the run.
            failed: Whether it ended by an error, which says enough.
        """
        known = self._runs.pop(run, None)
        if known is None or failed or known.batch is None:
            return
        left: dict[str, int] = {}
        for number, end in enumerate(known.ends):
            # A source that is used twice has one entry in events, and two in the plan.
            options = known.options[min(number, len(known.options) - 1)]
            for topic, count in _observed(known, end, options).left.items():
                left[topic] = left.get(topic, 0) + count
        if left:
            _log.warning(
                "%s ended after one batch with %s records unread: %s. %s runs "
                "Trigger.AvailableNow and Trigger.Once so; spark_plugin.available_now(writer) "
                "reads all",
                name,
                f"{sum(left.values()):,}",
                ", ".join(f"{topic} {count:,}" for topic, count in sorted(left.items())),
                SPARK,
            )


def _options(plan: Any) -> Iterator[dict[str, str]]:
    """The options of the kshare sources in a streaming query's plan."""
    for leaf in streaming_leaves(plan):
        if is_ours(leaf.sourceName()):
            yield dict(leaf.extraOptions().asCaseSensitiveMap())


def _observed(run: _Run, end: BatchOffsets, options: Mapping[str, str]) -> "Status":
    """Compare where a source ended with its cluster, as ``kshare status`` does."""
    # A driver that only listens does without them.
    from kshare.cli.query import query_status  # noqa: PLC0415
    from kshare.kafka.cluster import Cluster  # noqa: PLC0415
    from kshare.kafka.parked_keys import ParkedKeys  # noqa: PLC0415
    from kshare.monitor.status import Checkpoint, Source  # noqa: PLC0415
    from kshare.options import parse_options  # noqa: PLC0415

    parsed = parse_options(dict(options), streaming=True, makes_assignor=False)
    kafka = parsed.options.kafka
    kafka = kafka.within(min(kafka.api_timeout_ms, _WAIT_MS))
    assert run.batch is not None
    checkpoint = Checkpoint(
        directory="",
        planned=run.batch,
        committed=run.batch,
        sources=(Source(0, end, end.progress),),
        planned_ms=run.planned_ms,
    )
    with closing(ParkedKeys(kafka)) as keys, closing(Cluster(kafka)) as cluster:
        return query_status(
            checkpoint, cluster, keys, lambda text: _log.info("what is unread: %s", text)
        )
