"""The sources of a frame. With ``realTime``, handlers run in their tasks, and not behind them.

Rows that go to an operator in Python wait in Spark's buffers, up to 64 KiB of them. So where
nothing lies between a source and its handlers, the source is loaded anew, and given the handlers.

What a frame reads is looked up in its plan: of the JVM, or of Spark Connect's client. Spark is not
imported here: frames, sessions and the source are found as Spark finds them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from kshare.errors import OptionsError
from kshare.format_name import is_ours
from kshare.kafka.topics import is_internal
from kshare.options import Assign, Subscribe, SubscribePattern, parse_options
from kshare.options.kinds import parse_duration

if TYPE_CHECKING:
    from kshare.processing.work import Work

__all__ = [
    "REAL_TIME",
    "PlannedSource",
    "open_source",
    "planned_sources",
    "processing_source",
    "why_not_in_reader",
]

REAL_TIME: Final = "realtime"
"""The option, as Spark writes it in a plan."""
_SOURCE: Final = "pyspark_kshare"
_TOPICS: Final = {"subscribe", "subscribepattern", "assign"}
_COLUMNS: Final = ("key", "topic", "partition", "offset")


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """One of kshare's sources in the plan of a stream's frame.

    Attributes:
        options: Its options, by their names in lower case.
        between: What lies between it and the frame, the frame's own node first.
        has_name: Whether it has a name of its own in the checkpoint.
    """

    options: Mapping[str, str] = field(repr=False)
    between: tuple[str, ...] = ()
    has_name: bool = False

    def reads(self, topic: str) -> bool:
        """True if it reads a topic; False, too, if its options say no topics: Spark tells that."""
        given = {name: text for name, text in self.options.items() if name in _TOPICS}
        try:  # the topics alone: what else is wrong is not looked for here
            parsed = parse_options({**given, "kafka.bootstrap.servers": "any:9092"}, streaming=True)
        except OptionsError:
            return False
        match parsed.options.topics:
            case Subscribe(topics):
                return topic in topics
            case Assign(partitions):
                return any(each.topic == topic for each in partitions)
            case SubscribePattern() as pattern:
                return pattern.matches(topic) and not is_internal(topic)


def planned_sources(frame: Any) -> list[PlannedSource]:
    """The sources of kshare's that a stream's frame reads; none of a batch."""
    classic = getattr(frame, "_jdf", None)
    if classic is None:
        return list(_in_connect(getattr(frame, "_plan", None), ()))
    if classic.isStreaming():
        return list(_in_jvm(classic.queryExecution().analyzed(), ()))
    return []  # a plan may be long, and each look into it takes a call


def open_source(sources: Iterable[PlannedSource]) -> PlannedSource | None:
    """The first of some sources that reads with ``realTime``; None if none does."""
    return next((each for each in sources if REAL_TIME in each.options), None)


def _in_jvm(plan: Any, above: tuple[str, ...]) -> Iterator[PlannedSource]:
    kind = plan.getClass().getSimpleName()
    if kind.startswith("StreamingRelation"):
        if is_ours(plan.sourceName()):
            options = {name.lower(): value for name, value in dict(plan.extraOptions()).items()}
            yield PlannedSource(options, above, _has_name(plan))
        return
    children = plan.children()
    for number in range(children.size()):
        yield from _in_jvm(children.apply(number), (*above, kind))


def _has_name(relation: Any) -> bool:
    """True if a source was given a name; older versions of Spark have none."""
    # A node is asked for its fields first: through Py4J, it seems to have each attribute.
    if "sourceIdentifyingName" not in relation.productElementNames().mkString(" ").split():
        return False
    return "User" in relation.sourceIdentifyingName().getClass().getSimpleName()


def _in_connect(plan: Any, above: tuple[str, ...]) -> Iterator[PlannedSource]:
    kind = type(plan).__name__
    if kind == "DataSource":
        if is_ours(str(plan._format)) and plan._is_streaming:  # noqa: SLF001
            options = {name.lower(): value for name, value in (plan._options or {}).items()}  # noqa: SLF001
            has_name = getattr(plan, "_source_name", None) is not None
            yield PlannedSource(options, above, has_name)
        return
    for name in ("_child", "left", "right"):
        child = getattr(plan, name, None)
        if child is not None:
            yield from _in_connect(child, (*above, kind))


def why_not_in_reader(source: PlannedSource, frame: Any, work: "Work") -> str | None:
    """The reason why handlers cannot run in tasks of a source, and what helps; None if they can."""
    return next(_obstacles(source, frame, work), None)


def _obstacles(source: PlannedSource, frame: Any, work: "Work") -> Iterator[str]:
    if source.between:
        yield (
            f"between load() and it there is {', '.join(source.between)}; call it with the frame "
            "of load(), and filter or select afterwards, or in the handler"
        )
    if source.has_name:
        yield "the source has a name; leave out name(...)"
    if work.key != "key":
        yield f"key={work.key!r} is not the records' key; leave it out"
    lacking = [name for name in _COLUMNS if name not in frame.columns]
    if lacking:
        yield f"columns are left out; let the option columns have {', '.join(lacking)}, too"
    elif frame.schema["key"].dataType.typeName() != "binary":
        yield "keys are typed; leave out keyFormat"
    seconds = parse_duration(source.options[REAL_TIME])
    plan = work.processor.settings.retry
    least = sum(
        min(plan.first_seconds * 2.0 ** min(each, 64), plan.seconds_max)
        for each in range(min(plan.attempts - 1, 1_000))
    )
    if least >= seconds:
        yield (
            f"the {plan.attempts} attempts of its Retry take {least:g} s, and are counted anew in "
            "each micro-batch; let realTime be longer"
        )


def processing_source(frame: Any, source: PlannedSource, work: bytes, added: Any) -> Any:
    """The frame of a source whose tasks process their rows.

    Args:
        frame: The frame of the source.
        source: The source.
        work: The pickled :class:`~kshare.processing.work.Work`.
        added: The columns that it adds, a ``StructType``.
    """
    session = frame.sparkSession
    made = import_module(_SOURCE).DefaultSource.working(work, added)
    session.dataSource.register(made)
    return session.readStream.format(made.name()).options(**source.options).load()
