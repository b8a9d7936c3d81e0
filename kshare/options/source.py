"""Options of the source: ``dict[str, str]`` -> :class:`SourceOptions`, all faults together.

Guarantee: nothing is contacted, and no file is read but by ``check_rows``; either the options come
back, or one error that lists every fault. Semantics are those of Spark's ``KafkaSourceProvider``.

A name that leads to no task assignor and a config of it (``taskAssignor.NAME``) out of bounds are
faults of the options. The assignor that is made to check this is the one that the planner asks: it
is configured once. No text form of the configs holds a value, since any may be a secret.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kshare.options.allowed import function_fault
from kshare.options.frozen import FrozenMapping, Properties
from kshare.options.kafka import CONSUMER, lacks_prefix, parse_kafka
from kshare.options.kinds import topic_fault
from kshare.options.model import (
    Assign,
    FromGroup,
    ParsedOptions,
    SourceOptions,
    StartSpec,
    Subscribe,
    SubscribePattern,
    Topics,
)
from kshare.options.names import NO_EFFECT, NOT_BUILT, REMOVED
from kshare.options.offset_specs import OffsetSpecParser, parse_assign
from kshare.options.pattern import java_pattern
from kshare.options.raw import Faults, RawOptions
from kshare.options.row_formats import TypedRowsParser, is_row_option
from kshare.options.rules import SOURCE_RULES
from kshare.options.table import OPTIONS
from kshare.options.typed_rows import TypedRows

if TYPE_CHECKING:
    from kshare.assignment import TaskAssignor

__all__ = ["is_assignor_config", "made_task_assignor", "parse_options", "parse_task_assignor"]

_STRATEGIES = ("subscribe", "subscribePattern", "assign")


def parse_options(
    options: Mapping[str, str],
    *,
    streaming: bool,
    makes_assignor: bool = True,
    check_rows: Callable[[TypedRows], Iterable[str]] = lambda _: (),
) -> ParsedOptions:
    """Check and parse all options of ``format("kshare")``.

    Args:
        options: As Spark passes them; names in any case.
        streaming: Whether they are those of a streaming query.
        makes_assignor: Whether to make and configure a stream's task assignor, and report its
            faults. False where it is not known yet that the query is a stream.
        check_rows: Finds the faults of schemas that are given inline, to report them with all
            others: formats read them, which are no part of the options.

    Returns:
        The options and the warnings for the user.

    Raises:
        OptionsError: Something is wrong; all of it is listed.
    """
    faults = Faults()
    # From here on no local variable's text shows a secret, in any traceback.
    options = RawOptions(options, faults)
    parser = _SourceParser(
        options, streaming=streaming, makes_assignor=makes_assignor, check_rows=check_rows
    )
    parsed = parser.parse()
    faults.raise_if_any()
    if parsed is None:  # pragma: no cover - only with faults
        raise AssertionError("options without faults must parse")
    return ParsedOptions(parsed, tuple(faults.warnings))


class _SourceParser:
    """Parses one set of options once."""

    def __init__(
        self,
        raw: RawOptions,
        *,
        streaming: bool,
        makes_assignor: bool,
        check_rows: Callable[[TypedRows], Iterable[str]],
    ) -> None:
        self._raw = raw
        self._faults = raw.faults
        self._streaming = streaming
        self._makes_assignor = makes_assignor
        self._check_rows = check_rows

    def parse(self) -> SourceOptions | None:
        self._check_names()
        kafka = parse_kafka(self._raw.kafka, self._raw.value("oauthTokenProvider"))
        topics = self._topics()
        offsets = OffsetSpecParser(self._raw, streaming=self._streaming)
        starting, ending = offsets.starting(), offsets.ending()
        fields = self._fields()
        fields |= self._task_assignor()
        fields["leaves_out_large"] = not fields.get("fail_on_data_loss", True)
        rows = TypedRowsParser(self._raw).parse(topics, fields.get("columns") or ())
        fields["typed_rows"] = rows
        if rows is not None:
            self._faults.problems.extend(self._check_rows(rows))
        self._check_rules(topics, starting, fields)
        if not self._streaming:
            offsets.check_batch(topics, starting, ending)
        self._check_offsets_per_trigger()
        self._match_headers(fields)
        self._separate_auto(fields)
        if kafka is None or topics is None or starting is None or ending is None:
            return None
        asking = {
            name.removeprefix("kafka."): fields.pop(name)
            for name in list(fields)
            if name.startswith("kafka.")
        }
        return SourceOptions(
            topics=topics,
            kafka=replace(kafka, **asking),
            starting=starting,
            ending=ending,
            **fields,
        )

    def _counts(self, name: str) -> bool:
        """True if an option of the table counts in this query."""
        return ("stream" if self._streaming else "batch") in OPTIONS[name].queries

    def _check_names(self) -> None:
        for name in self._raw:
            is_config = is_assignor_config(name)
            is_row = is_row_option(name)
            queries = OPTIONS[name].queries if name in OPTIONS else ()
            of_streams = is_config or name in REMOVED or queries == ("stream",)
            if of_streams and not self._streaming:
                self._faults.warn(name, "is ignored in batch queries")
            elif name in NOT_BUILT:
                self._raw.fault(name, "not built yet")
            elif name in REMOVED:
                self._raw.fault(name, *REMOVED[name])
            elif name in NO_EFFECT:
                self._faults.warn(name, NO_EFFECT[name])
            elif queries == ("sink",):
                self._faults.warn(name, "is ignored, it is an option of the sink")
            elif not queries and not is_config and not is_row:
                known = [option.name for option in OPTIONS.values() if option.queries != ("sink",)]
                wrong = lacks_prefix(name, CONSUMER)
                self._raw.warn_unknown(name, (*known, *NOT_BUILT), wrong)

    def _fields(self) -> dict[str, Any]:
        """The fields of ``SourceOptions`` that an option fills by itself."""
        fields = {}
        for option in OPTIONS.values():
            if option.field is not None and self._counts(option.name):
                value = self._raw.value(option.name)
                value = option.unset if value is None else value
                if value is not None:
                    fields[option.field] = value
        return fields

    # -- topics -----------------------------------------------------------------------------

    def _topics(self) -> Topics | None:
        named = [name for name in _STRATEGIES if name in self._raw]
        if len(named) != 1:
            listed = f"; given: {', '.join(named)}" if named else ""
            number = "only one" if named else "one"
            self._faults.add(
                " | ".join(_STRATEGIES),
                None,
                f"{number} of these options must be specified{listed}",
            )
            return None
        parse = {
            "subscribe": self._subscribe,
            "subscribePattern": self._subscribe_pattern,
            "assign": self._assign,
        }[named[0]]
        return parse(self._raw[named[0]])

    def _subscribe(self, text: str) -> Subscribe | None:
        topics = [part.strip() for part in text.split(",") if part.strip()]
        if not topics:
            self._raw.fault("subscribe", "names no topic", "give topics separated by commas")
            return None
        self._check_topics("subscribe", topics)
        return Subscribe(tuple(dict.fromkeys(topics)))

    def _subscribe_pattern(self, text: str) -> SubscribePattern | None:
        pattern = text.strip()
        if not pattern:
            self._raw.fault("subscribePattern", "is empty", "give a regular expression")
            return None
        try:
            java_pattern(pattern)
        except ValueError as error:
            self._raw.fault("subscribePattern", str(error))
            return None
        return SubscribePattern(pattern)

    def _assign(self, text: str) -> Assign | None:
        try:
            assign = parse_assign(text)
        except ValueError as error:
            self._raw.fault("assign", str(error))
            return None
        self._check_topics("assign", sorted({topic for topic, _ in assign.partitions}))
        return assign

    def _check_topics(self, option: str, topics: list[str]) -> None:
        for topic in topics:
            wrong = topic_fault(topic)
            if wrong is not None:
                self._raw.fault(option, *wrong)

    # -- options that depend on each other --------------------------------------------------

    def _task_assignor(self) -> dict[str, Any]:
        if not self._streaming:
            return {}
        name, configs = parse_task_assignor(
            self._raw, self._faults, makes_assignor=self._makes_assignor
        )
        return {"task_assignor": name, "task_assignor_configs": configs}

    def _check_rules(
        self, topics: Topics | None, starting: StartSpec | None, fields: Mapping[str, Any]
    ) -> None:
        """Report contradictions, and what has no effect."""
        facts: dict[str, Any] = {
            name: fields.get(OPTIONS[name].field or "", text)
            for name, text in self._raw.items()
            if name in OPTIONS and self._counts(name)
        }
        facts["stream"] = self._streaming
        facts["assign.ranges"] = isinstance(topics, Assign) and any(topics.partitions.values())
        facts["startingOffsets"] = "group" if isinstance(starting, FromGroup) else None
        facts["kafka.group.id"] = self._raw.kafka.get("group.id")
        self._faults.check(SOURCE_RULES, facts, self._raw)

    def _check_offsets_per_trigger(self) -> None:
        """Report a minimum above the maximum, in batch queries too, as Spark's source does."""
        least, most = self._limit("minOffsetsPerTrigger"), self._limit("maxOffsetsPerTrigger")
        if least is not None and most is not None and least > most:
            self._raw.fault(
                "minOffsetsPerTrigger",
                f"must not be more than maxOffsetsPerTrigger, which is {most}",
            )

    def _limit(self, name: str) -> int | None:
        """A number that a batch query does not use: only a stream reports what is wrong with it."""
        kind = OPTIONS[name].kind
        try:
            return kind.parse(self._raw[name]) if kind and name in self._raw else None
        except ValueError:
            return None

    def _match_headers(self, fields: dict[str, Any]) -> None:
        """Make ``includeHeaders`` and ``columns`` agree."""
        columns = fields.get("columns")
        if columns is None:
            return
        if fields.get("include_headers") and "headers" not in columns:
            self._raw.fault(
                "columns",
                "lacks headers, which includeHeaders=true adds",
                "add headers, or leave out includeHeaders",
            )
        fields["include_headers"] = "headers" in columns

    def _separate_auto(self, fields: dict[str, Any]) -> None:
        """Put ``auto`` into a field of its own."""
        if fields.get("min_partitions") == "auto":
            del fields["min_partitions"]
            fields["min_partitions_auto"] = True


_OPTION = "taskAssignor"
_PREFIX = "taskassignor."


class _Configs(Properties):
    """An assignor's configs, and in the process that parsed them the assignor.

    The assignor is no part of the value: neither compared, nor shown, nor pickled.
    """

    __slots__ = ("made",)

    def __init__(
        self, items: Mapping[str, str] | None = None, made: "TaskAssignor | None" = None
    ) -> None:
        super().__init__(items)
        self.made = made


def is_assignor_config(name: str) -> bool:
    """True if an option is a config of the task assignor."""
    return name.lower().startswith(_PREFIX)


def parse_task_assignor(
    raw: Mapping[str, str],
    faults: Faults,
    *,
    makes_assignor: bool,
    given: type | None = None,
) -> tuple[str | None, FrozenMapping[str, str]]:
    """Parse the name of the assignor and its configs.

    Args:
        raw: The options by documented name.
        faults: Takes what is wrong.
        makes_assignor: Whether to make the assignor, so that its faults are found.
        given: The class that is named; None to look for it.

    Returns:
        The assignor's name, None if none is given; and its configs, names in lower case.
    """
    configs = {
        name[len(_PREFIX) :].lower(): value
        for name, value in raw.items()
        if is_assignor_config(name)
    }
    name = raw.get(_OPTION)
    if name is None and not configs:
        return None, FrozenMapping()
    # 15 ms of a planner's start, and most queries name no assignor.
    from kshare.assignment import AssignmentConfigs, load_task_assignor  # noqa: PLC0415
    from kshare.assignment.loading import is_built_in  # noqa: PLC0415

    made = None
    try:
        AssignmentConfigs.from_configs(configs)
    except ValueError as error:
        faults.add(f"{_OPTION}.*", None, str(error))
    if name is not None:
        name = name.strip()
    fault = None
    if name is not None and given is None and not is_built_in(name):
        fault = function_fault(name)
    if name is not None and fault is not None:
        faults.add(_OPTION, name, *fault)
    elif name is not None and makes_assignor:
        try:
            made = load_task_assignor(given or name, configs)
        except ValueError as error:
            faults.add(_OPTION, name, str(error))
    return name, _Configs(configs, made)


def made_task_assignor(configs: FrozenMapping[str, str]) -> "TaskAssignor | None":
    """Return the assignor that was made and configured when these configs were parsed.

    None if none was named, or if the configs came from another process.
    """
    return configs.made if isinstance(configs, _Configs) else None
