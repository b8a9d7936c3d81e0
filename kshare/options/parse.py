"""``dict[str, str]`` -> :class:`SourceOptions`, all faults together.

Law: nothing is contacted and no file is read; either the options come back, or one error that
lists every fault. Semantics are those of Spark's ``KafkaSourceProvider``. Cost: text only.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar

from kshare.options.assignors import is_assignor_config, parse_task_assignor
from kshare.options.durations import (
    DEFAULT_RANGES,
    parse_delay,
    parse_duration,
    parse_keys,
    parse_wanted_keys,
)
from kshare.options.faults import Faults
from kshare.options.frozen import HIDDEN, FrozenMapping, Properties
from kshare.options.kafka import parse_boolean, parse_integer, parse_kafka
from kshare.options.model import (
    SOURCE_COLUMNS,
    Assign,
    ParsedOptions,
    SourceOptions,
    Subscribe,
    SubscribePattern,
    Topics,
)
from kshare.options.offset_json import parse_assign
from kshare.options.offset_specs import LimitsParser
from kshare.options.pattern import java_pattern
from kshare.options.table import IGNORED_IN_BATCH, NOT_BUILT, SINK_ONLY, SOURCE_BUILT, canonical
from kshare.ranges import load_range_assignor

__all__ = ["Given", "parse_options", "topic_fault"]

_STRATEGIES = ("subscribe", "subscribePattern", "assign")
_PROVIDER = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_KEY_RANGES_MAX = 1 << 16
_CHUNK_BYTES = 209_715_200  # the proposal's default
# Spark's defaults of fetchOffset.numRetries, which counts attempts, and .retryIntervalMs.
_ATTEMPTS = 3
_ATTEMPTS_PAUSE_MS = 1_000

_Value = TypeVar("_Value")
_COLUMNS = {name.lower(): name for name in SOURCE_COLUMNS}


def parse_options(
    options: Mapping[str, str], *, streaming: bool, makes_assignor: bool = True
) -> ParsedOptions:
    """Check and parse all options of ``format("kshare")``.

    Args:
        options: as Spark hands them over; names in any case.
        streaming: whether they are those of a streaming query.
        makes_assignor: whether a stream's task assignor is made and configured, and its faults
            are told. Not where it is not known yet that the query is a stream.

    Returns:
        The options and the warnings for the user.

    Raises:
        OptionsError: something is wrong; all of it is listed.
    """
    faults = Faults()
    # From here on no local variable's text shows a secret, in whatever traceback.
    options = Given(options, faults)
    parser = _Parser(options, faults, streaming=streaming, makes_assignor=makes_assignor)
    parsed = parser.parse()
    faults.raise_if_any()
    if parsed is None:  # pragma: no cover - only with faults
        raise AssertionError("options without faults must parse")
    return ParsedOptions(parsed, tuple(faults.warnings))


def topic_fault(topic: str) -> tuple[str, str] | None:
    """What is wrong with a topic's name, and what would be right; None if nothing."""
    if _TOPIC.fullmatch(topic) and topic not in {".", ".."}:
        return None
    return f"{topic!r} cannot be a topic's name", "allowed: 1 to 249 letters, digits, '.', '_', '-'"


def parse_columns(text: str) -> tuple[str, ...]:
    """Parse ``columns``: names separated by commas, in any case.

    Returns:
        The names in Spark's spelling, in the order given.

    Raises:
        ValueError: there is no name, an unknown one, or one twice.
    """
    names = [name.strip() for name in text.split(",")]
    for place, name in enumerate(names):
        if name.lower() not in _COLUMNS:
            wrong = f"has no column {name!r}" if text.strip() else "names no column"
            raise ValueError(f"{wrong}; known are: {', '.join(SOURCE_COLUMNS)}")
        if name.lower() in map(str.lower, names[:place]):
            raise ValueError(f"names {name!r} twice; known are: {', '.join(SOURCE_COLUMNS)}")
    return tuple(_COLUMNS[name.lower()] for name in names)


class Given(FrozenMapping[str, str]):
    """The options as given, by documented name; ``kafka.`` properties apart."""

    __slots__ = ("kafka",)

    def __init__(self, options: Mapping[str, Any], faults: Faults) -> None:
        own: dict[str, str] = {}
        kafka: dict[str, str] = {}
        for given, value in options.items():
            name = canonical(given)
            if not isinstance(value, str | int):
                faults.add(name, None, f"must be a string, not {type(value).__name__}")
                continue
            text = str(value).lower() if isinstance(value, bool) else str(value)
            into, key = (kafka, name[6:]) if name.startswith("kafka.") else (own, name)
            if into.setdefault(key, text) != text:
                faults.add(name, None, "is given twice, in different case, with different values")
        super().__init__(own)
        self.kafka = Properties(kafka)

    def __repr__(self) -> str:
        return HIDDEN


class _Parser:
    """Parses one set of options once."""

    def __init__(
        self, given: Given, faults: Faults, *, streaming: bool, makes_assignor: bool
    ) -> None:
        self._given = given
        self._faults = faults
        self._streaming = streaming
        self._makes_assignor = makes_assignor

    def parse(self) -> SourceOptions | None:
        self._check_names()
        kafka = parse_kafka(self._given.kafka, self._faults)
        topics = self._topics()
        limits = LimitsParser(self._given, self._faults, streaming=self._streaming)
        starting, ending = limits.starting(), limits.ending()
        split_by = self._split_by()
        key_ranges = self._positive("keyRanges", _KEY_RANGES_MAX)
        min_partitions = self._min_partitions()
        max_records = self._positive("maxRecordsPerPartition", _LONG_MAX)
        per_trigger = self._per_trigger()
        cached = self._number("max.bytes.key.range.results", 0)
        assignor = self._range_assignor()
        task_assignor, assignor_configs = (
            parse_task_assignor(self._given, self._faults, makes_assignor=self._makes_assignor)
            if self._streaming
            else (None, FrozenMapping[str, str]())
        )
        fail_on_data_loss = self._boolean("failOnDataLoss", default=True)
        columns = self._parsed("columns", parse_columns)
        include_headers = self._headers(columns)
        keys = self._parsed("keys", parse_wanted_keys)
        max_tasks: int | Literal["auto"] | None = "auto"
        if not self._is_auto("maxTasks"):
            max_tasks = self._positive("maxTasks", _INT_MAX)
        self._check_splitting(topics, split_by)
        if not self._streaming:
            limits.check_batch(topics, starting, ending)
        pacing = self._pacing(split_by) if self._streaming else {}
        commits = self._commits()
        asking = self._asking()
        if kafka is None or topics is None or starting is None or ending is None:
            return None
        return SourceOptions(
            topics=topics,
            kafka=replace(kafka, **asking),
            starting=starting,
            ending=ending,
            max_records_per_partition=max_records,
            commit_offsets=commits,
            fail_on_data_loss=fail_on_data_loss,
            include_headers=include_headers,
            min_partitions=None if min_partitions == "auto" else min_partitions,
            min_partitions_auto=min_partitions == "auto",
            max_tasks=max_tasks,
            columns=columns,
            keys=keys,
            key_ranges=key_ranges,
            split_by=split_by,
            range_assignor=assignor,
            max_bytes_key_range_results=_CHUNK_BYTES if cached is None else cached,
            task_assignor=task_assignor,
            task_assignor_configs=assignor_configs,
            **per_trigger,
            **pacing,
        )

    def _fault(self, name: str, wrong: str, right: str = "") -> None:
        self._faults.add(name, self._given.get(name), wrong, right)

    def _check_names(self) -> None:
        for name in self._given:
            is_config = is_assignor_config(name)
            if not self._streaming and (is_config or name in IGNORED_IN_BATCH):
                self._faults.warn(name, "is ignored in batch queries")
            elif name in NOT_BUILT:
                self._fault(name, "not built yet")
            elif name in SINK_ONLY:
                self._faults.warn(name, "is ignored, it is an option of the sink")
            elif name.lower().startswith("spark."):
                self._faults.warn(
                    name, "is ignored, it is no option but a configuration of Spark's"
                )
            elif name not in SOURCE_BUILT and not is_config:
                known = {n.lower(): n for n in (*SOURCE_BUILT, *NOT_BUILT)}
                known["kafka.bootstrap.servers"] = "kafka.bootstrap.servers"
                near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.0)[0]
                self._faults.warn(
                    name,
                    f"is ignored, no such option is known; the nearest known one is {known[near]}",
                )

    def _boolean(self, name: str, *, default: bool) -> bool:
        value = parse_boolean(self._faults, name, self._given.get(name, str(default)))
        return default if value is None else value

    def _positive(self, name: str, highest: int) -> int | None:
        return self._number(name, 1, highest)

    def _number(self, name: str, lowest: int, highest: int = _LONG_MAX) -> int | None:
        if name not in self._given:
            return None
        return parse_integer(self._faults, name, self._given[name], lowest, highest)

    def _is_auto(self, name: str) -> bool:
        return self._given.get(name, "").strip().lower() == "auto"

    def _min_partitions(self) -> int | Literal["auto"] | None:
        if not self._is_auto("minPartitions"):
            return self._positive("minPartitions", _INT_MAX)
        if not self._streaming:
            self._fault("minPartitions", "is for streams", "give a number in batch queries")
        return "auto"

    def _headers(self, columns: tuple[str, ...] | None) -> bool:
        """Whether ``headers`` is a column."""
        wanted = self._boolean("includeHeaders", default=False)
        if columns is None:
            return wanted
        if wanted and "headers" not in columns:
            self._fault(
                "columns",
                "lacks headers, which includeHeaders=true adds",
                "add headers, or leave out includeHeaders",
            )
        return "headers" in columns

    # -- what is read -----------------------------------------------------------------------

    def _topics(self) -> Topics | None:
        given = [name for name in _STRATEGIES if name in self._given]
        if len(given) != 1:
            found = f"; given: {', '.join(given)}" if given else ""
            number = "only one" if given else "one"
            self._faults.add(
                " | ".join(_STRATEGIES), None, f"{number} of these options must be specified{found}"
            )
            return None
        parse = {
            "subscribe": self._subscribe,
            "subscribePattern": self._subscribe_pattern,
            "assign": self._assign,
        }[given[0]]
        return parse(self._given[given[0]])

    def _subscribe(self, value: str) -> Subscribe | None:
        topics = [part.strip() for part in value.split(",") if part.strip()]
        if not topics:
            self._fault("subscribe", "names no topic", "give topics separated by commas")
            return None
        self._check_topics("subscribe", topics)
        return Subscribe(tuple(dict.fromkeys(topics)))

    def _subscribe_pattern(self, value: str) -> SubscribePattern | None:
        pattern = value.strip()
        if not pattern:
            self._fault("subscribePattern", "is empty", "give a regular expression")
            return None
        try:
            java_pattern(pattern)
        except ValueError as error:
            self._fault("subscribePattern", str(error))
            return None
        return SubscribePattern(pattern)

    def _assign(self, value: str) -> Assign | None:
        try:
            assign = parse_assign(value)
        except ValueError as error:
            self._fault("assign", str(error))
            return None
        self._check_topics("assign", sorted({topic for topic, _ in assign.partitions}))
        return assign

    def _check_topics(self, option: str, topics: list[str]) -> None:
        for topic in topics:
            wrong = topic_fault(topic)
            if wrong is not None:
                self._fault(option, *wrong)

    # -- how it is split --------------------------------------------------------------------

    def _split_by(self) -> Literal["key", "offset"]:
        value = self._given.get("splitBy", "key").strip().lower()
        if value not in {"key", "offset"}:
            self._fault("splitBy", "is not known", "allowed: key (default), offset")
        return "offset" if value == "offset" else "key"

    def _per_trigger(self) -> dict[str, Any]:
        if not self._streaming:
            return {}
        most = self._positive("maxOffsetsPerTrigger", _LONG_MAX)
        least = self._positive("minOffsetsPerTrigger", _LONG_MAX)
        if most is not None and least is not None and least > most:
            self._fault(
                "minOffsetsPerTrigger",
                f"must not be more than maxOffsetsPerTrigger, which is {most}",
            )
        found: dict[str, Any] = {
            "max_offsets_per_trigger": most,
            "min_offsets_per_trigger": least,
        }
        delay = self._parsed("maxTriggerDelay", parse_delay)
        if delay is not None:
            found["max_trigger_delay_seconds"] = delay
        return found

    def _range_assignor(self) -> str:
        name = self._given.get("rangeAssignor", "round-robin").strip()
        try:
            load_range_assignor(name)
        except ValueError as error:
            self._fault("rangeAssignor", str(error))
        return name

    def _check_splitting(self, topics: Topics | None, split_by: str) -> None:
        """What contradicts itself in how partitions are cut."""
        if split_by == "offset":
            if "keyRanges" in self._given:
                self._fault("keyRanges", "cuts by key, which contradicts splitBy=offset")
            if "keys" in self._given:
                self._fault("keys", "goes by key ranges, which contradicts splitBy=offset")
            if "rangeAssignor" in self._given:
                self._faults.warn("rangeAssignor", "has no effect with splitBy=offset")
        if not isinstance(topics, Assign) or not any(topics.partitions.values()):
            return
        if split_by == "offset":
            self._fault("splitBy", "cannot be offset where assign has key ranges")
        for name in ("keyRanges", "minPartitions", "maxRecordsPerPartition", "rangeAssignor"):
            if name in self._given:
                self._faults.warn(
                    name, "has no effect on partitions whose key ranges are given in assign"
                )

    # -- how far a stream goes --------------------------------------------------------------

    def _pacing(self, split_by: str) -> dict[str, Any]:
        ranges = self._positive("maxRangesInCheckpoint", _INT_MAX)
        found = {
            "max_records_per_task": self._positive("maxRecordsPerTask", _LONG_MAX),
            "target_task_seconds": self._parsed("targetTaskDuration", parse_duration),
            "parked_keys": self._parsed("parkedKeys", parse_keys) or (),
            "max_ranges_in_checkpoint": DEFAULT_RANGES if ranges is None else ranges,
            "max_offsets_ahead": self._positive("maxOffsetsAhead", _LONG_MAX),
        }
        if split_by == "offset":
            for name in ("maxRecordsPerTask", "targetTaskDuration", "parkedKeys"):
                if name in self._given:
                    self._fault(name, "goes by key ranges, which contradicts splitBy=offset")
        return found

    def _commits(self) -> bool:
        """``commitOffsets``, and what the consumer group is good for."""
        commits = self._boolean("commitOffsets", default=False) and self._streaming
        group = self._given.kafka.get("group.id")
        if commits and not group:
            self._fault("commitOffsets", "needs kafka.group.id, the group to commit to")
        if group is not None and not commits:
            self._faults.warn(
                "kafka.group.id", "has no effect without commitOffsets=true: no group is joined"
            )
        return commits

    def _asking(self) -> dict[str, Any]:
        """How long the planner and the tasks ask Kafka."""
        attempts = self._number("fetchOffset.numRetries", 1, _INT_MAX)
        pause_ms = self._number("fetchOffset.retryIntervalMs", 0)
        return {
            "offset_attempts": _ATTEMPTS if attempts is None else attempts,
            "offset_retry_ms": _ATTEMPTS_PAUSE_MS if pause_ms is None else pause_ms,
            "poll_timeout_ms": self._number("kafkaConsumer.pollTimeoutMs", 1),
            "oauth_token_provider": self._token_provider(),
        }

    def _token_provider(self) -> str | None:
        name = self._given.get("oauthTokenProvider", "").strip()
        if "oauthTokenProvider" in self._given and not _PROVIDER.fullmatch(name):
            self._fault(
                "oauthTokenProvider",
                "is not the path of a Python function",
                "write package.module:function",
            )
        return name or None

    def _parsed(self, name: str, parse: Callable[[str], _Value]) -> _Value | None:
        if name not in self._given:
            return None
        try:
            return parse(self._given[name])
        except ValueError as error:
            self._fault(name, str(error))
            return None
