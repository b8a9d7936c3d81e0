"""The configuration of a group's consumer: names of two clients, all faults at once, no secrets."""

import logging
from typing import Any

import pytest

from kshare.assignment import StickyTaskAssignor
from kshare.errors import OptionsError
from kshare.group.config.consumer_config import consumer_config
from kshare.group.config.table import CONFIGS, ConsumerConfig
from kshare.options.registry_table import REGISTRY_PROPERTIES
from kshare.options.row_names import DOTTED_NAMES, dotted, row_option
from kshare.options.source import made_task_assignor
from kshare.options.table import SECTIONS
from tests.support.options import options

BASE: dict[str, Any] = {"bootstrap.servers": "kafka.ssl.example:9092", "group.id": "billing"}


def config(**given: Any) -> ConsumerConfig:
    return consumer_config(BASE | {name.replace("__", "."): given[name] for name in given})


def problems(given: dict[str, Any]) -> list[str]:
    with pytest.raises(OptionsError) as caught:
        consumer_config(given)
    assert "the consumer's configuration" in str(caught.value)
    return list(caught.value.problems)


class Mine(StickyTaskAssignor):
    """An assignor that no path leads to, if it is made in a notebook."""


@pytest.mark.parametrize("name", ["taskAssignor", "task.assignor.class"])
def test_a_task_assignor_may_be_given_as_a_class(name: str) -> None:
    parsed = consumer_config({**BASE, name: Mine})
    assert parsed.task_assignor == f"{__name__}:Mine"
    assert isinstance(made_task_assignor(parsed.task_assignor_configs), Mine)
    (problem,) = problems({**BASE, name: dict})
    assert "dict has no method assign" in problem
    (problem,) = problems({**BASE, "group.instance.id": Mine})
    assert "must be a string or a number" in problem


def test_defaults_are_those_of_kafka_and_of_the_proposal() -> None:
    parsed = config()
    assert parsed.group == parsed.kafka.group_id == "billing"
    assert parsed.individual
    assert parsed.auto_commit
    assert not parsed.explicit
    assert (parsed.auto_commit_interval_ms, parsed.max_ranges) == (5_000, 10_000)
    assert (parsed.log_topic, parsed.log_segment_bytes) == (
        "__individual_commit_offsets",
        10_485_760,
    )
    assert (parsed.offset_reset, parsed.queued_max_kbytes) == ("latest", 65_536)
    assert parsed.columns == ()
    assert parsed.lease_records is None
    assert config(consumption__order="none").lease_records == 1_000


def test_times_of_a_member() -> None:
    parsed = config()
    assert (parsed.session_timeout_ms, parsed.heartbeat_interval_ms) == (45_000, 3_000)
    assert parsed.max_poll_interval_ms == 300_000
    assert config(session__timeout__ms=6_000).heartbeat_interval_ms == 2_000
    given = {"session.timeout.ms": 3_000, "heartbeat.interval.ms": 3_000, "group.instance.id": " "}
    late, empty = problems(BASE | given)[::-1]
    assert "heartbeat.interval.ms" in late
    assert "must be lower than session.timeout.ms" in late
    assert "group.instance.id" in empty


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, 300.0),
        ({"session.timeout.ms": 400_000, "max.poll.interval.ms": 400_000}, 400.0),
        ({"session.timeout.ms": 30_000, "max.poll.interval.ms": 60_000}, 60.0),
        ({"cooperative.lease.timeout.ms": 5_000}, 5.0),
    ],
)
def test_a_lease_lasts_as_long_as_kafka_allows_between_two_polls(
    given: dict[str, int], seconds: float
) -> None:
    base = {"bootstrap.servers": "b:9092", "group.id": "g", "consumption.order": "none"}
    assert consumer_config({**base, **given}).lease_seconds == seconds


def test_each_configuration_is_taken_under_each_of_its_names() -> None:
    values: dict[str, tuple[str, Any]] = {
        "acknowledgement.mode": ("Explicit", True),
        "allow.individual.commit": ("false", False),
        "auto.commit.interval.ms": ("7", 7),
        "auto.offset.reset": ("smallest", "earliest"),
        "claim.timeout.ms": ("5000", 5000),
        "columns": ("offset, VALUE", ("offset", "value")),
        "consumption.order": ("None", "none"),
        "cooperative.chunk.records": ("70", 70),
        "cooperative.lease.timeout.ms": ("900", 900),
        "enable.auto.commit": ("false", False),
        "group.instance.host": ("node-1", "node-1"),
        "individual.commit.log.segment.bytes": ("1048576", 1 << 20),
        "individual.commit.topic": ("team.log", "team.log"),
        "keys": ('["a", {"hex": "00ff"}]', (b"a", b"\x00\xff")),
        "max.num.ranges.to.commit": ("9", 9),
        "queued.max.messages.kbytes": ("512", 512),
        "application.server": (" pod-3:8080 ", "pod-3:8080"),
        "group.instance.id": ("pod-3", "pod-3"),
        "heartbeat.interval.ms": ("700", 700),
        "max.poll.interval.ms": ("9000", 9_000),
        "max.record.bytes": ("1048576", 1 << 20),
        "partition.assignment.strategy": (
            "kshare-range-v1, range",
            ("kshare-range-v1", "range"),
        ),
        "session.timeout.ms": ("8000", 8_000),
        "minPartitions": ("12", 12),
        "probing.rebalance.interval.ms": ("5000", 5_000),
        "purgatory": ("Key", "key"),
        "rangeAssignor": ("adaptive", "adaptive"),
        "stateful": ("true", True),
        "taskAssignor": (" StickyTaskAssignor ", "StickyTaskAssignor"),
        "transaction.timeout.ms": ("5000", 5000),
        "transactional.id": ("billing-1", "billing-1"),
    }
    assert values.keys() == CONFIGS.keys()
    for name, (text, value) in values.items():
        for alias in (name, name.upper(), f"kafka.{name}", *CONFIGS[name].aliases):
            given = {**BASE, "acknowledgement.mode": "explicit", alias: text}
            assert getattr(consumer_config(given), CONFIGS[name].field) == value, alias


@pytest.mark.parametrize("strategy", ["range", "range,kshare-range-v1", "cooperative-sticky", ""])
def test_other_assignment_strategies_are_refused(strategy: str) -> None:
    with pytest.raises(OptionsError, match="kshare-range-v1,range while plain consumers") as caught:
        config(partition__assignment__strategy=strategy)
    assert "partition.assignment.strategy" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"), [("consumption.order", "none"), ("transactional.id", "billing-1")]
)
def test_what_plain_consumers_know_nothing_of_contradicts_range(name: str, value: str) -> None:
    both = {**BASE, "partition.assignment.strategy": "kshare-range-v1,range", name: value}
    with pytest.raises(OptionsError, match=f"range contradicts {name}"):
        consumer_config(both)
    consumer_config({**both, "partition.assignment.strategy": "kshare-range-v1"})


def test_how_partitions_are_cut() -> None:
    parsed = config()
    assert (parsed.range_assignor, parsed.probing_interval_ms) == ("round-robin", 60_000)
    assert not parsed.measures_load
    own = config(rangeAssignor=" kshare.ranges.adaptive:adaptive ")
    assert own.range_assignor == "kshare.ranges.adaptive:adaptive"
    assert own.measures_load
    (lags,) = problems(BASE | {"rangeassignor": "lag-weighted"})
    assert lags.startswith("rangeAssignor: cannot cut what members share")
    assert "allowed: round-robin (default), adaptive, or the dotted path" in lags
    (unknown,) = problems(BASE | {"rangeAssignor": "adaptiv"})
    assert "neither built in nor the dotted path" in unknown


def test_a_task_assignor_its_configs_and_client_tags(caplog: pytest.LogCaptureFixture) -> None:
    given = {
        "task.assignor.class": "org.apache.kafka.streams.processor.assignment.assignors.Sticky"
        "TaskAssignor",
        "taskAssignor.rack.aware.assignment.tags": "zone",
        "client.tag.zone": "eu-1",
        "client.tag.Rack": "r2",
    }
    parsed = consumer_config(BASE | given)
    assert parsed.task_assignor == given["task.assignor.class"]
    assert dict(parsed.task_assignor_configs) == {"rack.aware.assignment.tags": "zone"}
    assert parsed.client_tags == (("Rack", "r2"), ("zone", "eu-1"))
    assert parsed.measures_load
    assert "eu-1" not in repr(parsed.task_assignor_configs)
    with caplog.at_level(logging.WARNING):
        plain = config(minPartitions="5", stateful="true", taskAssignor__limit="7")
    assert plain.task_assignor is None
    for name in ("minPartitions", "stateful", "taskAssignor.limit"):
        assert f"{name} has no effect without taskAssignor" in caplog.text


def test_a_task_assignor_that_cannot_be_used() -> None:
    (unknown,) = problems(BASE | {"taskAssignor": "Stickky"})
    assert "no task assignor 'Stickky'" in unknown
    assert "built in are: HighAvailabilityTaskAssignor" in unknown
    given = {"taskAssignor": "StickyTaskAssignor", "taskAssignor.max.warmup.replicas": "0"}
    (bounds,) = problems(BASE | given)
    assert "max.warmup.replicas: Value must be at least 1" in bounds
    given = {
        "taskAssignor": "StickyTaskAssignor",
        "rangeAssignor": "adaptive",
        "minPartitions": "4",
    }
    (both,) = problems(BASE | given)
    assert "minPartitions: contradicts rangeAssignor=adaptive" in both
    tags = {f"client.tag.n{i}": "x" for i in range(6)} | {"client.tag.long": "x" * 31}
    many, long = problems(BASE | tags)
    assert "client.tag.*: are 7; 5 are allowed" in many
    assert "client.tag.long: is too long" in long


def test_without_key_order_nothing_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        parsed = config(rangeAssignor="adaptive", consumption__order="none")
    assert not parsed.measures_load
    assert "rangeAssignor has no effect with consumption.order=none" in caplog.text


def test_values_may_be_numbers_and_booleans() -> None:
    parsed = config(enable__auto__commit=False, max__num__ranges__to__commit=3)
    assert (parsed.auto_commit, parsed.max_ranges) == (False, 3)


def test_properties_of_both_clients_reach_kafka() -> None:
    java = config(fetch__max__wait__ms="9", client__id="me", request__timeout__ms="4000")
    librdkafka = consumer_config(
        {
            "metadata.broker.list": "kafka.ssl.example:9092",
            "group.id": "billing",
            "fetch.wait.max.ms": 9,
            "client.id": "me",
            "socket.timeout.ms": 4000,
        }
    )
    assert java.client_id == "me"
    assert java.kafka.fetch_max_wait_ms == 9
    assert java.kafka.request_timeout_ms == 4000
    assert librdkafka == java


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_login_of_librdkafka_is_java_s(mechanism: str) -> None:
    secret = 'a"b\\c;\n/*'
    parsed = consumer_config(
        BASE
        | {
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": mechanism,
            "sasl.username": "u",
            "sasl.password": secret,
            "ssl.ca.location": "/ca.pem",
        }
    )
    assert parsed.kafka.sasl_username == "u"
    password = parsed.kafka.sasl_password
    assert password is not None
    assert password.reveal() == secret
    assert parsed.kafka.properties["ssl.truststore.type"] == "PEM"
    assert secret not in repr(parsed)
    assert "a\\" not in repr(parsed)


def test_a_coroutine_function_is_no_on_commit() -> None:
    async def later(*_: Any) -> None:
        pass

    (problem,) = problems({**BASE, "on_commit": later})
    assert problem.startswith("on_commit: is a coroutine function")


def test_all_faults_are_told_at_once_without_a_prefix_and_without_secrets() -> None:
    found = problems(
        {
            "bootstrap.servers": "kafka.ssl.x:9092,nonsense",
            "sasl.username": "u",
            "sasl.password": "hunter2",
            "enable.auto.commit": "maybe",
            "auto.offset.reset": "by_duration:PT1H",
            "value.deserializer": "x",
            "isolation.level": "snapshot",
            "max.in.flight.per.key": "1",
            "on_commit": 3,
            "error.code": [],
            "ssl.key.location": "/k",
            "ssl.provider": "x",
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
        }
    )
    assert sorted(text.split(":")[0] for text in found) == [
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "error.code",
        "group.id",
        "isolation.level",
        "max.in.flight.per.key",
        "on_commit",
        "sasl.username",
        "ssl.key.location",
        "ssl.provider",
        "value.deserializer",
    ]
    text = "\n".join(found)
    assert "hunter2" not in text
    assert "acknowledgement.mode=explicit" in text
    assert "kshare.processing.Processor" in text


def test_a_value_that_looks_like_a_prefix_is_shown_as_it_is() -> None:
    found = problems({**BASE, "bootstrap.servers": "kafka.ssl.x"})
    assert any("'kafka.ssl.x'" in text for text in found), found


def test_harmless_values_of_refused_names_are_taken() -> None:
    parsed = consumer_config(
        BASE | {"enable.auto.offset.store": True, "enable.partition.eof": "False"}
    )
    assert parsed == config()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("max.bytes.key.range.hashing", "it is an option of the Spark source"),
        ("max.bytes.key.range.results", "it is an option of the Spark source"),
        ("accept.individual.commit", "kshare policy set accept.individual.commit"),
        ("accept.range.fetch", "kshare policy set accept.range.fetch"),
        ("reserve.message.value.range.fetch", "values included"),
        ("parkedKeys", "park keys with kshare park"),
    ],
)
def test_what_a_consumer_does_not_need_is_explained(
    name: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "kshare.group"):
        consumer_config({**BASE, name: "1"})
    (text,) = caplog.messages
    assert "has no effect" in text
    assert why in text


def test_misspelt_names_are_warned_of_with_the_nearest(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kshare.group"):
        config(auto__ofset__reset="latest", isolation__levl="x", max__poll__records=9)
    unknown = "option {} is ignored, no such property is known; the nearest known one is {}"
    assert sorted(record.getMessage() for record in caplog.records) == [
        unknown.format("auto.ofset.reset", "auto.offset.reset"),
        unknown.format("isolation.levl", "isolation.level"),
        "option max.poll.records has no effect in kshare",
    ]


def test_a_property_given_twice_with_different_values_is_a_fault() -> None:
    given = {**BASE, "fetch.max.wait.ms": 1, "fetch.wait.max.ms": 2}
    (fault,) = problems(given)
    assert "given twice" in fault
    assert "fetch.wait.max.ms" in fault


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (
            {"acknowledgement.mode": "explicit", "share.acknowledgement.mode": "implicit"},
            "acknowledgement.mode: is given twice, also as share.acknowledgement.mode, ",
        ),
        (
            {"task.assignor.class": "sticky", "taskAssignor": "highly-available"},
            "taskAssignor: is given twice, ",
        ),
        (
            {"auto.offset.reset": "latest", "kafka.Auto.Offset.Reset": "earliest"},
            "auto.offset.reset: is given twice, ",
        ),
        ({"group.id": "a", "kafka.group.id": "b"}, "group.id: is given twice, "),
        (
            {"client.tag.zone": "a", "kafka.client.tag.zone": "b"},
            "client.tag.zone: is given twice, ",
        ),
        (
            {"taskAssignor": "sticky", "taskAssignor.x": "1", "taskassignor.X": "2"},
            "taskassignor.X: is given twice, ",
        ),
        ({"sasl.username": "a", "kafka.sasl.username": "b"}, "sasl.username: is given twice, "),
        (
            {"oauthTokenProvider": "a:b", "kafka.oauthTokenProvider": "c:d"},
            "oauthTokenProvider: is given twice, ",
        ),
        ({"on_commit": print, "kafka.on_commit": repr}, "on_commit: is given twice, "),
    ],
)
def test_a_name_of_its_own_given_twice_with_different_values_is_a_fault(
    given: dict[str, Any], fault: str
) -> None:
    twice = [each for each in problems({**BASE, **given}) if "given twice" in each]
    assert twice == [f"{fault}with different values"]


def test_a_name_given_twice_with_one_value_is_no_fault() -> None:
    given = {"acknowledgement.mode": "explicit", "share.acknowledgement.mode": "EXPLICIT"}
    tags = {"client.tag.zone": "a", "client.tag.Zone": "b"}
    parsed = consumer_config({**BASE, **given, **tags, "kafka.on_commit": print})
    assert parsed.explicit
    assert parsed.client_tags == (("Zone", "b"), ("zone", "a"))
    assert parsed.on_commit is print


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("purgatory", "key", "transactional.id"),
        ("transaction.timeout.ms", "30000", "transactional.id"),
        ("cooperative.chunk.records", "10", "consumption.order=none"),
        ("cooperative.lease.timeout.ms", "10", "consumption.order=none"),
    ],
)
def test_what_has_no_effect_is_warned_of(
    name: str, value: str, needed: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        consumer_config(BASE)
        assert not caplog.records
        consumer_config(BASE | {name: value})
    assert f"{name} has no effect without {needed}" in caplog.text


def test_a_hint_is_near_or_says_where_a_name_belongs(caplog: pytest.LogCaptureFixture) -> None:
    given = {"startingOffsets": "earliest", "inferSchema": "true", "sesion.timeout.ms": "1"}
    given |= {"metric.reporters": "x", "kafka.metrics.num.samples": "2"}
    with caplog.at_level(logging.WARNING):
        consumer_config(BASE | given)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    found = "\n".join(said)
    assert "in Spark: set auto.offset.reset" in found
    assert "inferSchema is ignored, no such property is known\n".lower() in f"{found}\n".lower()
    assert "nearest known one is session.timeout.ms" in found
    assert "metric.reporters, metrics.num.samples have no effect in kshare" in found


# -- typed rows -----------------------------------------------------------------------------------

REGISTRY = {"schema.registry.url": "http://localhost:8081"}


def test_typed_rows_have_dotted_names_and_those_of_spark() -> None:
    given = {
        "value.format": "avro",
        "value.subject": "orders-value",
        "value.fields": "user,qty",
        "key.format": "json",
        "key.schema": "id INT",
        "key.framing": "none",
        "key.json.timeZone": "Europe/Berlin",
        "bad.records": "deadLetter=bad",
        "columns": "value,valueError",
        **REGISTRY,
        "schema.registry.basic.auth.user.info": "user:password",
    }
    of_spark = {
        "valueFormat": "avro",
        "valueSubject": "orders-value",
        "valueFields": "user,qty",
        "keyFormat": "json",
        "keySchema": "id INT",
        "keyFraming": "none",
        "key.json.timeZone": "Europe/Berlin",
        "badRecords": "deadLetter=bad",
        "schemaRegistry.url": "http://localhost:8081",
        "schemaRegistry.basic.auth.user.info": "user:password",
    }
    found = consumer_config(BASE | given).typed_rows
    assert found is not None
    assert found == options({**of_spark, "subscribe": "t"}, streaming=False).typed_rows
    assert found == consumer_config({**BASE, **of_spark, "columns": "value"}).typed_rows
    assert consumer_config(BASE).typed_rows is None


def test_every_option_of_typed_rows_has_its_dotted_name() -> None:
    typed = {entry.name for entry in SECTIONS["Typed rows"]}
    assert typed == set(DOTTED_NAMES.values())
    for name, option in DOTTED_NAMES.items():
        assert row_option(name) == row_option(name.upper()) == row_option(option) == option
    for name in REGISTRY_PROPERTIES:
        assert row_option(f"schema.registry.{name}") == f"schemaRegistry.{name}"


def test_all_contradictions_of_typed_rows_at_once_in_dotted_names() -> None:
    found = problems(
        {
            **BASE,
            "value.format": "avro",
            "value.framing": "singleobject",
            "key.format": "string",
            "key.schema": "a INT",
            "value.json.dateFormat": "yyyy",
            "bad.records": "drop",
            "columns": "value,keySchemaId",
            "schema.registry.basic.auth.user.info": "nobody",
        }
    )
    assert found == [
        "schema.registry.url: must be specified with schema.registry.*",
        (
            "bad.records: is not known (given: 'drop'); allowed: fail (default), null, "
            "deadLetter=<topic>"
        ),
        "key.schema: contradicts key.format=string: a string has no schema (given: 'a INT')",
        "value.json.dateFormat: contradicts value.format=avro",
        (
            "value.schema: must be specified with value.format=avro; give a schema of Avro in "
            "JSON, or schema.registry.url"
        ),
        (
            "columns: has keySchemaId, and with key.framing=none records name no id; framings "
            "with ids: confluent, apicurio"
        ),
    ]


def test_the_newest_schema_needs_a_subject_as_topics_come_later() -> None:
    given = {**BASE, **REGISTRY, "value.format": "avro"}
    assert problems(given) == [
        (
            "value.subject: must be specified with value.schema=latest, as topics are not known "
            "before subscribe(); give the name of a subject; serializers' own is <topic>-value"
        )
    ]
    assert consumer_config({**given, "value.schema": "id:7"}).typed_rows is not None
    twice = {**given, "value.subject": "a", "valueSubject": "b"}
    assert problems(twice) == ["value.subject: is given twice, with different values"]


def test_names_within_what_a_user_gave_stay() -> None:
    assert dotted("valueSchema: is 'valueSchema', columns has valueSchemaId") == (
        "value.schema: is 'valueSchema', columns has valueSchemaId"
    )
    (problem,) = problems({**BASE, "columns": "valueError"})
    assert problem == "columns: has valueError, which needs value.format"


def test_what_has_no_effect_without_a_format_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    consumer_config({**BASE, "bad.records": "null"})
    assert "bad.records has no effect without value.format or key.format" in caplog.text
