"""Faults of the source's options: all at once, by name; contradictions."""

import copy
import dataclasses
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from kshare.errors import OptionsError
from kshare.options import (
    FROM_GROUP,
    KafkaConfig,
    SourceOptions,
    parse_options,
    parse_sink_options,
)
from kshare.options.kafka_table import (
    CONSUMER_NO_EFFECT,
    CONSUMER_REFUSED,
    LIBRDKAFKA_NAMES,
    NO_EFFECT,
    NOT_BUILT,
    PROPERTIES,
    REFUSED,
)
from kshare.options.kafka_table import (
    SECRET as SECRET_PROPERTIES,
)
from kshare.options.names import NO_EFFECT as SPARK_NO_EFFECT
from kshare.options.names import NOT_BUILT as SPARK_NOT_BUILT
from kshare.options.names import canonical
from kshare.options.producer_table import (
    COMMON,
    PRODUCER_LIBRDKAFKA_NAMES,
    PRODUCER_NO_EFFECT,
    PRODUCER_PROPERTIES,
    PRODUCER_REFUSED,
)
from kshare.options.table import OPTIONS
from tests.support.options import BASE, SECRET, SERVERS, options, problem, problems, warnings

KAFKA_REFUSED = {**REFUSED, **CONSUMER_REFUSED}
KAFKA_NO_EFFECT = (*NO_EFFECT, *CONSUMER_NO_EFFECT)
STREAMS_ONLY = [option.name for option in OPTIONS.values() if option.queries == ("stream",)]
SINKS_ONLY = [option.name for option in OPTIONS.values() if option.queries == ("sink",)]

# -- all faults at once, and by name --------------------------------------------------------------


def test_all_faults_are_told_at_once() -> None:
    found = problems(
        {
            "kafka.auto.offset.reset": "earliest",
            "kafka.ssl.engine.factory.class": "x.Y",
            "maxOffsetsPerTrigger": "0",
            "envelope": "x",
            "startingOffsets": "nowhere",
            "endingOffsets": "latest",
            "parkedKeys": "k",
            "kafka.isolation.level": "x",
        },
        base={},
    )
    assert [text.partition(":")[0] for text in found] == [
        "envelope",
        "kafka.auto.offset.reset",
        "kafka.ssl.engine.factory.class",
        "kafka.isolation.level",
        "kafka.bootstrap.servers",
        "subscribe | subscribePattern | assign",
        "startingOffsets",
        "endingOffsets",
        "maxOffsetsPerTrigger",
        "parkedKeys",
    ]


def test_the_error_counts_and_lists() -> None:
    with pytest.raises(OptionsError) as caught:
        parse_options({}, streaming=True)
    assert str(caught.value).startswith("2 faults in the options of format('kshare'):\n  - ")


@pytest.mark.parametrize("name", SPARK_NOT_BUILT)
def test_what_is_not_built_is_refused_by_name(name: str) -> None:
    assert problem({name.upper(): "x"}) == f"{name}: not built yet (given: 'x')"


@pytest.mark.parametrize("name", sorted(KAFKA_REFUSED))
def test_what_spark_refuses_is_refused_with_its_reasons(name: str) -> None:
    found = problem({f"kafka.{name}": SECRET})
    assert found == f"kafka.{name}: is not supported; {KAFKA_REFUSED[name]}"


@pytest.mark.parametrize("name", sorted(NOT_BUILT))
def test_properties_that_would_change_safety_are_refused(name: str) -> None:
    found = problem({f"kafka.{name}": SECRET})
    assert found == f"kafka.{name}: not built yet: {NOT_BUILT[name]}"


@pytest.mark.parametrize(
    "name", ["sasl.client.callback.handler.class", "ssl.provider", "security.providers"]
)
def test_other_credentials_and_another_tls_are_not_left_out(name: str) -> None:
    given = {**SERVERS, f"kafka.{name}": SECRET}
    (found,) = problems(given)
    assert found.startswith(f"kafka.{name}: not built yet: names a ")
    with pytest.raises(OptionsError) as caught:
        parse_sink_options({**given, "topic": "t"}, streaming=False)
    assert caught.value.problems == (found,)
    assert SECRET not in found


@pytest.mark.parametrize("name", KAFKA_NO_EFFECT)
def test_other_properties_of_java_are_accepted_with_a_warning(name: str) -> None:
    assert warnings({f"kafka.{name}": SECRET}) == (f"option kafka.{name} has no effect in kshare",)


@pytest.mark.parametrize("name", sorted(LIBRDKAFKA_NAMES))
def test_a_name_of_librdkafka_gets_javas(name: str) -> None:
    (found,) = warnings({f"kafka.{name}": SECRET})
    assert found == (
        f"option kafka.{name} is ignored, it is a name of librdkafka; kshare takes Kafka's Java "
        f"names: {LIBRDKAFKA_NAMES[name]}"
    )


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("startingOfsets", "startingOffsets"),
        ("STARTINGOFSETS", "startingOffsets"),
        ("minpartition", "minPartitions"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("kafka.isolation.levl", "kafka.isolation.level"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one(name: str, near: str) -> None:
    (found,) = warnings({name: SECRET})
    assert found.lower().startswith(f"option {name.lower()} is ignored, no such ")
    assert found.endswith(f" is known; the nearest known one is {near}")


CONSUMERS = "it is a property of Kafka's client"
HINTS = {
    "auto.offset.reset": f"{CONSUMERS}; {CONSUMER_REFUSED['auto.offset.reset']}",
    "key.deserializer": f"{CONSUMERS}; {CONSUMER_REFUSED['key.deserializer']}",
    "enable.auto.commit": f"{CONSUMERS}; {CONSUMER_REFUSED['enable.auto.commit']}",
    "group.id": f"{CONSUMERS}: write kafka.group.id",
    "Bootstrap.Servers": f"{CONSUMERS}: write kafka.bootstrap.servers",
    "security.protocol": f"{CONSUMERS}: write kafka.security.protocol",
    "max.poll.records": f"{CONSUMERS} that has no effect in kshare: leave it out",
    "ssl.cipher.suites": f"{CONSUMERS} that is not built yet: {NOT_BUILT['ssl.cipher.suites']}",
    "metadata.broker.list": (
        "it is a name of librdkafka; kshare takes Kafka's Java names: kafka.bootstrap.servers"
    ),
    "linger.ms": "it is a property of Kafka's producer",
    "kafka.acks": "it is a property of Kafka's producer",
    "checkpointLocation": "it belongs to the writer: set it on writeStream",
    "kafka.startingOffsets": "it is an option of kshare's: write startingOffsets",
    "stopGracefullyOnShutdown": "no such option is known",
    "inferSchema": "no such option is known",
    "multiline": "no such option is known",
    "kafka.nonsense": "no such property is known",
}
"""Names that people try, and what is said of each: where it belongs, or nothing more."""


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("name", HINTS)
def test_a_hint_is_near_or_says_where_a_name_belongs(name: str, streaming: bool) -> None:
    (found,) = warnings({name: SECRET}, streaming=streaming)
    assert found == f"option {name} is ignored, {HINTS[name]}".replace(
        "kafka.startingOffsets is", "kafka.startingoffsets is"
    )


def test_a_property_without_its_prefix_is_named_beside_what_is_missing() -> None:
    base = {name: value for name, value in BASE.items() if name != "kafka.bootstrap.servers"}
    first, *_, last = problems({"bootstrap.servers": SECRET}, base=base)
    assert "kafka.bootstrap.servers: must be specified" in first
    assert last == f"bootstrap.servers: {CONSUMERS}: write kafka.bootstrap.servers"


def test_properties_without_effect_are_one_line() -> None:
    given = {"kafka.session.timeout.ms": "1", "kafka.max.poll.records": "2", "minpartition": "3"}
    near, idle = warnings(given)
    assert near.endswith("minPartitions")
    assert idle == (
        "options kafka.session.timeout.ms, kafka.max.poll.records have no effect in kshare"
    )


@pytest.mark.parametrize(
    ("missing", "given", "near"),
    [
        ("kafka.bootstrap.servers", "kafka.boostrap.servers", "kafka.bootstrap.servers"),
        ("subscribe", "subscrib", "subscribe"),
    ],
)
def test_a_misspelt_required_option_is_named_beside_what_is_missing(
    missing: str, given: str, near: str
) -> None:
    base = {name: value for name, value in BASE.items() if name != missing}
    first, *_, last = problems({given: SECRET}, base=base)
    assert missing in first
    assert last.endswith(f"; the nearest known one is {near}")
    assert last.startswith(f"{given}: no such ")
    assert SECRET not in first + last


@pytest.mark.parametrize("name", SINKS_ONLY)
def test_options_of_the_sink_are_ignored_with_a_warning(name: str) -> None:
    assert warnings({name: "x"}) == (f"option {name} is ignored, it is an option of the sink",)


def test_configurations_of_spark_are_no_options() -> None:
    (found,) = warnings({"spark.kafka.consumer.cache.capacity": "3"})
    assert found.endswith("is ignored, it is no option but a configuration of Spark's")


@pytest.mark.parametrize("name", [*STREAMS_ONLY, "maxBytesPerTrigger"])
def test_what_limits_streams_is_ignored_in_batch_queries(name: str) -> None:
    (found,) = warnings({name: "what may not be looked at"}, streaming=False)
    assert found == f"option {name} is ignored in batch queries"


def test_a_task_assignor_is_not_looked_at_in_batch_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    configured: list[object] = []
    faulty = SimpleNamespace(assign=print, configure=configured.append)
    monkeypatch.setitem(sys.modules, "an_assignor", SimpleNamespace(faulty=faulty))
    given = {
        **BASE,
        "taskAssignor": "an_assignor.faulty",
        "TASKASSIGNOR.max.warmup.replicas": "0",  # of a stream it is a fault
        "taskAssignor.of.its.own": "x",
    }
    parsed = parse_options(given, streaming=False)
    assert parsed.options == options(streaming=False)
    assert sorted(parsed.warnings) == sorted(
        f"option {name} is ignored in batch queries" for name in given if name not in BASE
    )
    assert configured == []


def test_a_faulty_task_assignor_is_told_together_with_all_other_faults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def configure(configs: dict[str, str]) -> None:
        raise KeyError(f"no config among {configs}")

    faulty = SimpleNamespace(assign=print, configure=configure)
    monkeypatch.setitem(sys.modules, "an_assignor", SimpleNamespace(faulty=faulty))
    given = {
        "taskAssignor": "an_assignor.faulty",
        "taskAssignor.max.warmup.replicas": "0",
        "keyRanges": "many",
    }
    found = problems(given)
    assert [text.partition(":")[0] for text in found] == [
        "keyRanges", "taskAssignor.*", "taskAssignor",
    ]  # fmt: skip
    assert "it cannot be made: KeyError" in found[-1]


def test_texts_of_a_task_assignors_configs_hold_names_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assignor = SimpleNamespace(assign=print)
    monkeypatch.setitem(sys.modules, "an_assignor", SimpleNamespace(made=assignor))
    found = options({"taskAssignor": "an_assignor.made", "taskAssignor.password": SECRET})
    assert found.task_assignor_configs == {"password": SECRET}
    for one in (found, pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert one == found
        for thing in (one, one.task_assignor_configs, [one]):
            for text in (repr(thing), str(thing), f"{thing}"):
                assert "password" in text
                assert SECRET not in text


def test_a_task_assignors_error_shows_no_config(monkeypatch: pytest.MonkeyPatch) -> None:
    def configure(configs: dict[str, str]) -> None:
        raise KeyError(f"no config among {configs}")

    faulty = SimpleNamespace(assign=print, configure=configure)
    monkeypatch.setitem(sys.modules, "an_assignor", SimpleNamespace(faulty=faulty))
    found = problem({"taskAssignor": "an_assignor.faulty", "taskAssignor.password": SECRET})
    assert "it cannot be made: KeyError (its text holds the value of password, and" in found
    assert SECRET not in found


def test_a_task_assignor_is_left_alone_if_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "an_assignor", None)  # an import of it fails
    given = {**BASE, "taskAssignor": "an_assignor.faulty", "taskAssignor.a": "b"}
    with pytest.raises(OptionsError, match="taskAssignor"):
        parse_options(given, streaming=True)
    found = parse_options(given, streaming=True, makes_assignor=False).options
    assert found.task_assignor == "an_assignor.faulty"
    assert found.task_assignor_configs == {"a": "b"}
    with pytest.raises(OptionsError, match=r"taskAssignor\.\*.*max\.warmup\.replicas"):
        parse_options(
            {**given, "taskAssignor.max.warmup.replicas": "0"}, streaming=True, makes_assignor=False
        )


def test_names_are_compared_without_case() -> None:
    upper = {name.upper(): value for name, value in {**BASE, "minPartitions": "3"}.items()}
    parsed = parse_options(upper, streaming=True)
    assert parsed.warnings == ()
    assert parsed.options == options({"minPartitions": "3"})


def test_a_name_twice_with_two_values_is_a_fault() -> None:
    assert problem({"minPartitions": "3", "MINPARTITIONS": "4"}) == (
        "minPartitions: is given twice, in different case, with different values"
    )
    assert options({"minPartitions": "3", "MINPARTITIONS": "3"}).min_partitions == 3


def test_values_of_python_are_taken_as_texts() -> None:
    given: Any = {"minPartitions": 3, "failOnDataLoss": False}
    found = options(given)
    assert (found.min_partitions, found.fail_on_data_loss) == (3, False)
    spelled: Any = {"failOnDataLoss": False, "FAILONDATALOSS": "false"}
    assert not options(spelled).fail_on_data_loss
    wrong: Any = {"minPartitions": 3.0, "subscribe": None}
    assert problems(wrong) == (
        "subscribe: must be a string, not NoneType",
        "minPartitions: must be a string, not float",
        "subscribe | subscribePattern | assign: one of these options must be specified",
    )


def test_every_documented_name_is_its_own_canonical_spelling() -> None:
    for name in (*OPTIONS, *SPARK_NOT_BUILT, *SPARK_NO_EFFECT):
        assert canonical(name.upper()) == canonical(name.lower()) == name
    assert canonical("Kafka.Bootstrap.Servers") == "kafka.bootstrap.servers"
    assert canonical("Other") == "Other"


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("max.num.ranges.to.commit", "maxRangesInCheckpoint"),
        ("maxBytesKeyRangeResults", "max.bytes.key.range.results"),
        ("max.bytes.key.range.hashing", "max.bytes.key.range.results"),
        ("task.assignor.class", "taskAssignor"),
    ],
)
def test_an_alias_is_the_same_option(alias: str, name: str) -> None:
    assert canonical(alias) == canonical(alias.upper()) == name
    assert alias in OPTIONS[name].aliases
    found = problems({alias: "1", name: "2"})[0]
    assert found == f"{name}: is given twice, in different case, with different values"


def test_what_the_proposal_has_and_kshare_does_not_need_is_explained() -> None:
    (found,) = warnings({"reserve.message.value.range.fetch": "true"})
    assert found.startswith(
        "option reserve.message.value.range.fetch has no effect here, because what waits for "
    )
    assert "max.bytes.key.range.results" in found


@pytest.mark.parametrize("policy", ["accept.individual.commit", "accept.range.fetch"])
def test_a_policy_is_no_option_of_a_query(policy: str) -> None:
    (found,) = warnings({policy: "false"})
    assert found.endswith(f"because it is a policy of operators: kshare policy set {policy}")


def test_a_name_is_in_one_table_only() -> None:
    options = (OPTIONS, SPARK_NOT_BUILT, SPARK_NO_EFFECT)
    consumer = (PROPERTIES, KAFKA_NO_EFFECT, NOT_BUILT, KAFKA_REFUSED, LIBRDKAFKA_NAMES)
    producer = (
        COMMON,
        PRODUCER_PROPERTIES.keys() - {"request.timeout.ms"},  # of requests, and of records
        PRODUCER_NO_EFFECT,
        NOT_BUILT,
        PRODUCER_REFUSED,
        PRODUCER_LIBRDKAFKA_NAMES,
    )
    for tables in (options, consumer, producer):
        names = [name for names in tables for name in names]
        assert len(names) == len(set(names))
    assert set(PROPERTIES) >= SECRET_PROPERTIES


def test_a_field_is_filled_by_one_entry_and_is_there() -> None:
    fields = {f.name for f in dataclasses.fields(SourceOptions)}
    fields |= {f"kafka.{f.name}" for f in dataclasses.fields(KafkaConfig)}
    filled = [option.field for option in OPTIONS.values() if option.field is not None]
    filled += [f"kafka.{entry.field}" for entry in PROPERTIES.values() if entry.field is not None]
    assert len(filled) == len(set(filled))
    assert fields >= set(filled)


# -- contradictions -------------------------------------------------------------------------------


def test_the_minimum_of_a_trigger_is_not_above_its_maximum() -> None:
    found = problem({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"})
    assert found == (
        "minOffsetsPerTrigger: must not be more than maxOffsetsPerTrigger, which is 4 (given: '5')"
    )
    assert options({"minOffsetsPerTrigger": "4", "maxOffsetsPerTrigger": "4"})
    batch = problem({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, streaming=False)
    assert batch == found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("keyRanges", "2"),
        ("keys", '["k"]'),
        ("maxRecordsPerTask", "2"),
        ("targetTaskDuration", "2s"),
        ("parkedKeys", "[]"),
    ],
)
def test_cuts_by_offset_contradict_what_goes_by_key(name: str, value: str) -> None:
    assert "contradicts splitBy=offset" in problem({"splitBy": "offset", name: value})


LIMITS = {"maxRecordsPerTask": "2", "targetTaskDuration": "2s"}


@pytest.mark.parametrize(
    "limits", [("maxRecordsPerTask",), ("targetTaskDuration",), tuple(LIMITS)], ids="/".join
)
def test_limits_of_records_contradict_keys(limits: tuple[str, ...]) -> None:
    """Told with all other faults; a batch query has no such limits."""
    given = {"keys": '["k"]', **{name: LIMITS[name] for name in limits}}
    says = [
        f"keys: reads whole batches, which contradicts {name} "
        "(given: '[\"k\"]'); limit with maxOffsetsPerTrigger"
        for name in limits
    ]
    assert list(problems(given)) == says
    all_faults = problems({**given, "keyRanges": "0", "failOnDataLoss": "maybe"})
    assert set(says) < set(all_faults)
    assert len(all_faults) == 2 + len(says)
    assert parse_options({**BASE, **given}, streaming=False).options.keys == (b"k",)
    assert options({"keys": '["k"]', "maxOffsetsPerTrigger": "5"}).keys == (b"k",)


def test_an_assignor_of_key_ranges_has_no_effect_on_cuts_by_offset() -> None:
    found = warnings({"splitBy": "offset", "rangeAssignor": "adaptive"})
    assert found == ("option rangeAssignor has no effect with splitBy=offset",)


def test_commits_need_a_group() -> None:
    assert problem({"commitOffsets": "true"}) == (
        "commitOffsets: needs kafka.group.id, the group to commit to (given: 'true')"
    )
    found = options({"commitOffsets": "true", "kafka.group.id": "g"})
    assert (found.commit_offsets, found.kafka.group_id) == (True, "g")


def test_individual_commits() -> None:
    found = options({"commitOffsets": " Individual ", "kafka.group.id": "g"})
    assert found.commits_individually
    assert found.individual_commit_topic is None
    assert not options({"commitOffsets": "true", "kafka.group.id": "g"}).commits_individually
    assert problem({"commitOffsets": "yes"}) == (
        "commitOffsets: is wrong (given: 'yes'); wanted true, false or individual"
    )
    given = {"commitOffsets": "individual", "kafka.group.id": "g", "keys": '["k"]'}
    assert problem(given) == (
        "keys: reads some of the records, which contradicts commitOffsets=individual (given: "
        "'[\"k\"]'); commit no offsets, or give assign the ranges of key hashes to read"
    )


@pytest.mark.parametrize("streaming", [True, False])
def test_a_start_from_a_group(streaming: bool) -> None:
    given = {"startingOffsets": "Group", "kafka.group.id": "g", "individual.commit.topic": "log"}
    found = options(given, streaming=streaming)
    assert (found.starting, found.individual_commit_topic) == (FROM_GROUP, "log")
    assert problem({"startingOffsets": "group"}, streaming=streaming) == (
        "startingOffsets: needs kafka.group.id, the group to start from (given: 'group')"
    )
    outranked = warnings({**given, "startingTimestamp": "5"}, streaming=streaming)
    assert "option startingOffsets is ignored, because startingTimestamp is given" in outranked
    (warning,) = warnings({"individual.commit.topic": "log"}, streaming=streaming)
    assert warning == (
        "option individual.commit.topic has no effect without commitOffsets=individual or "
        "startingOffsets=group"
    )
    assert problem({"endingOffsets": "group"}, streaming=False).startswith("endingOffsets: ")


@pytest.mark.parametrize("streaming", [True, False])
def test_a_group_without_commits_has_no_effect(streaming: bool) -> None:
    assert warnings({"kafka.group.id": "g"}, streaming=streaming) == (
        "option kafka.group.id has no effect without commitOffsets or startingOffsets=group",
    )


def test_a_prefix_of_groups_is_accepted() -> None:
    assert options({"groupIdPrefix": "p"}) == options()


@pytest.mark.parametrize("name", ["round-robin", "lag-weighted", "adaptive", "json.dumps"])
def test_a_range_assignor_is_found_by_name_or_path(name: str) -> None:
    assert options({"rangeAssignor": name, "keyRanges": "2"}).range_assignor == name


@pytest.mark.parametrize("more", [{}, {"targetTaskDuration": "5s"}])
def test_a_range_assignor_without_ranges_has_no_effect(more: dict[str, str]) -> None:
    (found,) = warnings({"rangeAssignor": "adaptive", **more})
    assert found.startswith("option rangeAssignor has no effect without keyRanges or minPartitions")
    assert options({"rangeAssignor": "adaptive", "minPartitions": "2", **more})
    assert options({"rangeAssignor": "json.dumps", **more})  # it may cut as it likes


def test_a_range_assignor_that_is_not_there_is_a_fault() -> None:
    found = problem({"rangeAssignor": "no.such.module"})
    assert found.startswith("rangeAssignor: no range assignor 'no.such.module': ")
    assert "built in are: round-robin, lag-weighted, adaptive" in found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("targetTaskDuration", "5s"),
        ("maxRecordsPerTask", "5"),
        ("maxOffsetsPerTrigger", "5"),
        ("minOffsetsPerTrigger", "5"),
        ("maxTriggerDelay", "5s"),
        ("maxOffsetsAhead", "5"),
        ("maxRecordsPerPartition", "5"),
        ("splitBy", "offset"),
        ("minPartitions", "auto"),
        ("maxTasks", "auto"),
    ],
)
def test_what_gives_a_batch_an_end_contradicts_real_time(name: str, value: str) -> None:
    assert options({name: value}) != options()
    found = problem({"realTime": "60s", name: value})
    assert found.startswith(f"{name}: ")
    assert "realTime" in found


def test_real_time() -> None:
    found = options({"realTime": "1.5 min", "realTime.topic": "ends", "maxTimeAhead": "5m"})
    assert found.real_time_seconds == pytest.approx(90)
    assert found.real_time_topic == "ends"
    beside = {"keyRanges": "4", "minPartitions": "8", "maxTasks": "4", "keys": '["k"]'}
    assert options({"realTime": "100ms", **beside}).real_time_seconds == pytest.approx(0.1)
    for value in ("99ms", "25h"):
        assert problem({"realTime": value}).endswith("wanted 100ms to 24h")
    assert problem({"realTime": "60"}).startswith("realTime: is not a time above 0 with a unit")
    (warning,) = warnings({"realTime.topic": "ends"})
    assert warning == "option realTime.topic has no effect without realTime"
    (warning,) = warnings({"realTime": "5s", "maxRangesInCheckpoint": "7"})
    assert warning.startswith("option maxRangesInCheckpoint has no effect with realTime")
