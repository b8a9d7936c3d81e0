"""The configuration of a group's consumer: the names of librdkafka and of Kafka's Java client.

Guarantees: nothing is contacted and no file is read. Either the configuration comes back, or one
:class:`~kshare.errors.OptionsError` that lists every fault; what has no effect is warned of in the
log ``kshare.group``. No text form of it holds a secret.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from inspect import iscoroutinefunction
from typing import Any, Final

from kshare.errors import OptionsError
from kshare.group.config.names import (
    HARMLESS,
    JAVA_NAMES,
    LOGIN_MODULES,
    NO_EFFECT_NAMES,
    PEM_STORES,
    REFUSED_NAMES,
)
from kshare.group.config.rules import CONSUMER_RULES
from kshare.group.config.table import (
    CONFIGS,
    HEARTBEAT_MS,
    SESSION_MS,
    TRANSACTION_MS,
    ConsumerConfig,
)
from kshare.group.protocol.membership.subscription import RANGE
from kshare.kafka.topics import INDIVIDUAL_COMMITS_TOPIC
from kshare.options import KafkaConfig
from kshare.options.kafka import parse_kafka
from kshare.options.kafka_table import (
    CONSUMER_NO_EFFECT,
    LIBRDKAFKA_NAMES,
    NO_EFFECT,
    NOT_BUILT,
    PROPERTIES,
    REFUSED,
)
from kshare.options.names import NO_EFFECT as PROPOSAL_NO_EFFECT
from kshare.options.names import canonical
from kshare.options.producer_table import request_fault
from kshare.options.raw import Faults, RawOptions, RawProperties
from kshare.options.row_formats import TypedRowsParser
from kshare.options.row_names import DOTTED_NAMES, dotted, row_option
from kshare.options.rules import idle
from kshare.options.source import is_assignor_config, parse_task_assignor
from kshare.options.table import OPTIONS

__all__ = ["CONFIGURATION", "cluster_and_log", "consumer_config"]

_log = logging.getLogger("kshare.group")

CONFIGURATION: Final = "the consumer's configuration"
"""Where faults are, for :class:`~kshare.errors.OptionsError`."""

_BY_NAME: Final = {
    name.lower(): entry for entry in CONFIGS.values() for name in (entry.name, *entry.aliases)
}
_TASK_ASSIGNOR: Final = {n for n, entry in _BY_NAME.items() if entry.field == "task_assignor"}
_TOKEN_PROVIDER: Final = "oauthTokenProvider"  # noqa: S105

_NO_EFFECT: Final = {*NO_EFFECT_NAMES, *NO_EFFECT, *(set(CONSUMER_NO_EFFECT) - _BY_NAME.keys())}
"""Names that change neither what is read, nor as whom, nor whom is trusted."""

_BY_SOURCE: Final = (
    "has no effect in a consumer, because it is an option of the Spark source: consumers do not "
    "share what they fetch"
)
_OF_SOURCE: Final = {
    "max.bytes.key.range.results": _BY_SOURCE,
    "max.bytes.key.range.hashing": _BY_SOURCE,
    "parkedkeys": "has no effect in a consumer: park keys with kshare park",
}
"""Names that the Spark source takes, and why consumers do not."""

_KNOWN: Final = {*PROPERTIES, *LIBRDKAFKA_NAMES, *NOT_BUILT, *REFUSED}
_SUGGESTED: Final = (
    *CONFIGS,
    *(alias for entry in CONFIGS.values() for alias in entry.aliases),
    *DOTTED_NAMES,
    "schema.registry.url",
    *PROPERTIES,
    *JAVA_NAMES,
    *sorted({*_NO_EFFECT, *REFUSED_NAMES}),
    *("on_commit", "sasl.password", "sasl.username", _TOKEN_PROVIDER),
)

_TAG: Final = "client.tag."
_TAGS_MAX, _TAG_NAME_MAX, _TAG_VALUE_MAX = 5, 20, 30  # as in Kafka Streams

# Faults name Java's properties as Spark's options. A value that is shown is in quotes.
_PREFIXED: Final = re.compile(r"(?<!['\w.-])kafka\.(?=[a-z]+\.[a-z])")


def consumer_config(given: Mapping[str, Any]) -> ConsumerConfig:
    """Check and parse the configuration of a consumer.

    Args:
        given: Values by name: names of librdkafka or of Kafka's Java client, with or without the
            prefix ``kafka.``, and those of :data:`CONFIGS`.

    Raises:
        OptionsError: Something is wrong; all of it is listed.
    """
    faults = Faults()
    return _ConsumerParser(given, faults).parse()


def cluster_and_log(group: str, config: Mapping[str, Any] | KafkaConfig) -> tuple[KafkaConfig, str]:
    """How to reach the cluster, and the topic of a group's log, for who does not consume.

    Args:
        group: Id of the group.
        config: The configuration of a consumer, whose ``group.id`` does not matter; or of Kafka's
            client, for the default topic.

    Raises:
        OptionsError: Something is wrong; all of it is listed.
    """
    if isinstance(config, KafkaConfig):
        return config, INDIVIDUAL_COMMITS_TOPIC
    parsed = consumer_config({**config, "group.id": group})
    return parsed.kafka, parsed.log_topic


NOBODY_AWAITS: Final = (
    "give a plain function; one can call asyncio.run_coroutine_threadsafe(coroutine, loop)"
)
"""For whoever gives a coroutine function where a plain one is called."""


def is_async(function: object) -> bool:
    """True for a coroutine function, and an object whose call is one."""
    call = getattr(function, "__call__", None)  # noqa: B004 - an object's own, if it is async
    return iscoroutinefunction(function) or iscoroutinefunction(call)


class _ConsumerParser:
    """Parses one configuration once."""

    def __init__(self, given: Mapping[str, Any], faults: Faults) -> None:
        self._faults = faults
        self._fields: dict[str, Any] = {}
        self._assignor_texts: dict[str, str] = {}
        self._assignor_class: type | None = None
        self._on_commit: Any = None
        self._token_provider: str | None = None
        # From here on no local variable's text shows a secret, in any traceback.
        self._row_options = RawOptions({}, faults)
        self._raw = RawProperties(self._texts(given), faults)

    def parse(self) -> ConsumerConfig:
        if self._on_commit is not None and not callable(self._on_commit):
            self._faults.add("on_commit", None, "must be callable")
        elif is_async(self._on_commit):
            self._faults.add("on_commit", None, "is a coroutine function", NOBODY_AWAITS)
        kafka = parse_kafka(self._raw, self._token_provider)
        group = (self._raw.get("group.id") or "").strip()
        if not group:
            self._faults.add("group.id", None, "must be specified", "give the group's name")
        fields = self._fields
        self._check_times(fields)
        self._check_rules(fields)
        self._check_transaction(fields, kafka)
        fields["typed_rows"] = TypedRowsParser(self._row_options, names_topics=False).parse(
            None, fields.get("columns") or ()
        )
        fields |= _check_assignors(fields, self._assignor_texts, self._faults, self._assignor_class)
        for warning in self._faults.warnings:
            _log.warning("%s", _told(warning))
        if self._faults.problems:
            problems = [_told(problem) for problem in self._faults.problems]
            raise OptionsError(problems, of=CONFIGURATION)
        assert kafka is not None
        return ConsumerConfig(
            kafka=replace(kafka, group_id=group),
            group=group,
            client_id=kafka.client_id,
            on_commit=self._on_commit,
            **{name: value for name, value in fields.items() if value is not None},
        )

    def _check_rules(self, fields: Mapping[str, Any]) -> None:
        """Report contradictions, and what has no effect."""
        facts = {entry.name: fields.get(entry.field) for entry in CONFIGS.values()}
        if RANGE in (fields.get("protocols") or ()):
            facts["partition.assignment.strategy"] = RANGE
        configs = filter(is_assignor_config, self._assignor_texts)
        rules = (*CONSUMER_RULES, *(idle(name, "taskAssignor") for name in configs))
        self._faults.check(rules, {**self._assignor_texts, **facts})

    def _check_transaction(self, fields: dict[str, Any], kafka: KafkaConfig | None) -> None:
        if fields.get("transactional_id") is None:
            return
        fields["auto_commit"] = False
        timeout = fields.get("transaction_timeout_ms") or TRANSACTION_MS
        given = kafka is not None and "request.timeout.ms" in kafka.properties
        fault = request_fault(kafka.request_timeout_ms, timeout) if kafka and given else None
        if fault is not None:
            self._faults.add("request.timeout.ms", None, *fault)

    def _check_times(self, fields: dict[str, Any]) -> None:
        session = fields.get("session_timeout_ms") or SESSION_MS
        heartbeat = fields.setdefault(
            "heartbeat_interval_ms", max(min(HEARTBEAT_MS, session // 3), 1)
        )
        if heartbeat is not None and heartbeat >= session:
            self._faults.add(
                "heartbeat.interval.ms", None, "must be lower than session.timeout.ms",
                "a third of it is usual",
            )  # fmt: skip

    def _texts(self, given: Mapping[str, Any]) -> dict[str, str]:
        """Take what is the consumer's own; return Kafka's properties by Java's names."""
        login: dict[str, str] = {}
        kafka: dict[str, str] = {}
        rows: dict[str, str] = {}
        objects: dict[str, Any] = {}
        for name, value in given.items():
            plain = name.lower().removeprefix("kafka.")
            if plain == "on_commit" or name.removeprefix("kafka.") == _TOKEN_PROVIDER:
                self._keep(objects, plain, value, name.removeprefix("kafka."))
                continue
            if self._is_answered(plain, value):
                continue
            if isinstance(value, type) and plain in _TASK_ASSIGNOR:
                self._assignor_class = value
                value = f"{value.__module__}:{value.__qualname__}"  # noqa: PLW2901 - as it is named
            if not isinstance(value, str | int | float):
                wrong = f"must be a string or a number, not {type(value).__name__}"
                self._faults.add(plain, None, wrong)
                continue
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if plain in _BY_NAME:
                entry = _BY_NAME[plain]
                shown = entry.name if plain == entry.name.lower() else plain
                parsed = self._faults.parse(shown, text, entry.kind)
                self._keep(self._fields, entry.field, parsed, entry.name, shown)
            elif (option := row_option(plain)) is not None:
                self._keep(rows, option, text, option)
            elif is_assignor_config(plain) or plain.startswith(_TAG):
                self._keep_assignor_text(name[-len(plain) :], text)
            elif plain in {"sasl.username", "sasl.password"}:
                self._keep(login, plain, text, plain)
            else:
                self._put(kafka, plain, text)
        names = [name.lower().removeprefix("kafka.") for name in given]
        self._faults.warn_no_effect([name for name in names if name in _NO_EFFECT])
        self._on_commit = objects.get("on_commit")
        self._token_provider = objects.get(_TOKEN_PROVIDER.lower())
        self._row_options = RawOptions(rows, self._faults)
        self._put_login(kafka, login)
        return kafka

    def _keep(
        self, into: dict[str, Any], key: str, value: object, shown: str, also: str = ""
    ) -> None:
        """Keep a value; a name that is given twice, in two spellings, has to have one.

        Args:
            into: The values.
            key: The key among them.
            value: The value.
            shown: The name that a fault shows.
            also: The name as given, if it is another one.
        """
        if into.setdefault(key, value) != value:
            other = f" also as {also}," if also and also != shown else ""
            self._faults.add(shown, None, f"is given twice,{other} with different values")

    def _keep_assignor_text(self, name: str, text: str) -> None:
        """Keep a tag, in whose name case matters, or a config of the assignor."""
        texts = self._assignor_texts
        same = (each for each in texts if is_assignor_config(name) and each.lower() == name.lower())
        self._keep(texts, next(same, name), text, name)

    def _is_answered(self, name: str, value: Any) -> bool:
        """Report what there is to say of a name alone; return whether there was something."""
        if name in PROPOSAL_NO_EFFECT:
            self._faults.warn(name, PROPOSAL_NO_EFFECT[name])
        elif name in _OF_SOURCE:
            self._faults.warn(name, _OF_SOURCE[name])
        elif name in _NO_EFFECT:
            pass  # _texts() warns of all of them in one line
        elif name == "enable.partition.eof" and str(value).lower() != "false":
            self._faults.add(name, None, "is not supported", "poll returns None at the end")
        elif name in REFUSED_NAMES and str(value).lower() != HARMLESS.get(name):
            self._faults.add(name, None, "is not supported", REFUSED_NAMES[name])
        elif name not in REFUSED_NAMES and name != "enable.partition.eof":
            return False
        return True

    def _put(self, kafka: dict[str, str], name: str, text: str) -> None:
        java = JAVA_NAMES.get(name, name)
        if java not in _KNOWN:
            if canonical(name) in OPTIONS:
                self._faults.warn_ignored(name, _of_spark(name))
            else:
                self._faults.warn_unknown(name, "property", _SUGGESTED)
            return
        if name == "ssl.endpoint.identification.algorithm" and text.lower() == "none":
            text = ""
        self._keep(kafka, java, text, java, name)
        if name in PEM_STORES:
            kafka.setdefault(PEM_STORES[name], "PEM")

    def _put_login(self, kafka: dict[str, str], login: Mapping[str, str]) -> None:
        """Write user name and password of librdkafka as Java's ``sasl.jaas.config``."""
        if not login:
            return
        mechanism = kafka.get("sasl.mechanism", "").upper()
        if "sasl.jaas.config" in kafka:
            self._faults.add("sasl.username", None, "contradicts sasl.jaas.config", "give one")
        elif len(login) < 2:
            self._faults.add("sasl.username, sasl.password", None, "need each other")
        elif mechanism not in LOGIN_MODULES:
            self._faults.add(
                "sasl.username", None, "needs sasl.mechanism", f"one of {', '.join(LOGIN_MODULES)}"
            )
        else:
            user, password = (_quoted(login[f"sasl.{name}"]) for name in ("username", "password"))
            module = LOGIN_MODULES[mechanism]
            kafka["sasl.jaas.config"] = f"{module} required username={user} password={password};"


def _told(text: str) -> str:
    """A fault or warning in the names of this configuration."""
    return dotted(_PREFIXED.sub("", text))


def _of_spark(name: str) -> str:
    """Say what is wrong with an option of the source or sink, and what would be right."""
    right = {"startingoffsets": ": set auto.offset.reset", "subscribe": ": call subscribe()"}
    return f"it is an option of format('kshare') in Spark{right.get(name, '')}"


def _quoted(text: str) -> str:
    """A text as JAAS has it in double quotes."""
    escaped = re.sub(r'[\\"]', r"\\\g<0>", text).replace("\n", r"\n").replace("\r", r"\r")
    return f'"{escaped}"'


def _check_assignors(
    fields: Mapping[str, Any],
    texts: Mapping[str, str],
    faults: Faults,
    given: type | None = None,
) -> dict[str, Any]:
    """Check what concerns assignors.

    Args:
        fields: What the configurations of the consumer itself have been parsed to.
        texts: ``taskAssignor.NAME`` and ``client.tag.NAME``.
        faults: Takes what is wrong.
        given: The task assignor's class, if it was given as one.

    Returns:
        The fields that follow.
    """
    task_assignor = fields.get("task_assignor")
    configs = {name: text for name, text in texts.items() if is_assignor_config(name)}
    tags = {name[len(_TAG) :]: text for name, text in texts.items() if not is_assignor_config(name)}
    found: dict[str, Any] = {"client_tags": tuple(sorted(tags.items()))}
    if task_assignor is not None:
        named = {"taskAssignor": task_assignor, **configs}
        _, found["task_assignor_configs"] = parse_task_assignor(
            named, faults, makes_assignor=True, given=given
        )
    _check_tags(tags, faults)
    return found


def _check_tags(tags: Mapping[str, str], faults: Faults) -> None:
    if len(tags) > _TAGS_MAX:
        faults.add("client.tag.*", None, f"are {len(tags)}", f"{_TAGS_MAX} are allowed")
    for name, value in tags.items():
        if not 0 < len(name) <= _TAG_NAME_MAX or len(value) > _TAG_VALUE_MAX:
            faults.add(
                f"{_TAG}{name}", value, "is too long, or has no name",
                f"a name has 1 to {_TAG_NAME_MAX} characters, a value up to {_TAG_VALUE_MAX}",
            )  # fmt: skip
