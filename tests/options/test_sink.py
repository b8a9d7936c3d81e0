"""The sink's options and columns; librdkafka itself judges what it is given."""

import pickle

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from kshare.errors import OptionsError
from kshare.options import SinkOptions, parse_sink_options
from kshare.options.kafka_table import NOT_BUILT
from kshare.options.table import OPTIONS
from kshare.query.produce.config import producer_config, transactional_config
from tests.support.effort import examples
from tests.support.options import SECRET, SERVERS

BASE = {**SERVERS, "topic": "t"}
HEADERS = "array<struct<key:string,value:binary>>"
DEFAULTS = {"acks": -1, "enable.idempotence": True, "partitioner": "murmur2_random"}
Columns = list[tuple[str, str]]


def sink(given_: dict[str, str] | None = None, *, streaming: bool = True) -> SinkOptions:
    """Options that parse without a warning, and that librdkafka takes."""
    parsed = parse_sink_options({**BASE, **(given_ or {})}, streaming=streaming)
    assert parsed.warnings == ()
    accepted(parsed.options)
    return parsed.options


def accepted(options: SinkOptions) -> None:
    """See that librdkafka makes a producer of them; nothing is contacted."""
    config = producer_config(options)
    if options.exactly_once:
        config = transactional_config(options, "x")
    Producer({**config, "bootstrap.servers": "", "log_level": 0})


def warned(given_: dict[str, str]) -> str:
    """The one warning."""
    parsed = parse_sink_options({**BASE, **given_}, streaming=True)
    accepted(parsed.options)
    (warning,) = parsed.warnings
    return warning


def faults(
    given_: dict[str, str],
    columns: Columns | None = None,
    *,
    streaming: bool = True,
    base: dict[str, str] = BASE,
) -> tuple[str, ...]:
    """All faults."""
    with pytest.raises(OptionsError) as caught:
        parse_sink_options({**base, **given_}, columns or (), streaming=streaming)
    return caught.value.problems


# -- the sink's own -------------------------------------------------------------------------------


def test_the_batch_that_may_be_dropped_is_a_number() -> None:
    assert sink({}).drop_repeated_batch is None
    given_ = {"exactlyOnce": "true", "dropRepeatedBatch": "0"}
    assert sink(given_).drop_repeated_batch == 0
    (found,) = faults({"exactlyOnce": "true", "dropRepeatedBatch": "-1"})
    assert found.startswith("dropRepeatedBatch: is wrong")
    for batch in ("0", "3"):
        without = parse_sink_options({**BASE, "dropRepeatedBatch": batch}, streaming=True)
        assert without.warnings == (
            "option dropRepeatedBatch has no effect without exactlyOnce=true",
        )


def test_a_team_has_a_ledger_and_ids_of_its_own() -> None:
    assert (sink({}).ledger_topic, sink({}).id_prefix) == (None, "kshare")
    own = {"ledgerTopic": "__kshare_sink_ledger.a", "transactionalIdPrefix": " team:a "}
    found = sink({"exactlyOnce": "true", **own})
    assert (found.ledger_topic, found.id_prefix) == ("__kshare_sink_ledger.a", "team:a")
    for name, wrong in (
        ("ledgerTopic", "a b"),
        ("ledgerTopic", "t"),
        ("transactionalIdPrefix", "a b"),
        ("transactionalIdPrefix", "\N{LATIN SMALL LETTER E WITH ACUTE}"),
        ("transactionalIdPrefix", "a" * 201),
    ):
        (fault,) = faults({"exactlyOnce": "true", name: wrong})
        assert fault.startswith(name)
    for name, value in own.items():
        (warning,) = parse_sink_options({**BASE, name: value}, streaming=True).warnings
        assert warning == f"option {name} has no effect without exactlyOnce=true"


def test_defaults() -> None:
    found = sink()
    assert (found.topic, found.exactly_once) == ("t", False)
    assert found.producer == DEFAULTS
    assert found.kafka.bootstrap_servers == (("broker", 9092),)
    assert pickle.loads(pickle.dumps(found)) == found


def test_names_are_compared_without_case() -> None:
    upper = {name.upper(): value for name, value in {**BASE, "exactlyOnce": "TRUE"}.items()}
    assert parse_sink_options(upper, streaming=True).options == sink({"exactlyOnce": "true"})


def test_what_spark_hands_over_besides_is_no_option() -> None:
    assert sink({"checkpointLocation": "c", "path": "p", "includeHeaders": "true"}) == sink()


SOURCE_ONLY = [option.name for option in OPTIONS.values() if "sink" not in option.queries]


@pytest.mark.parametrize("name", [*SOURCE_ONLY, "taskAssignor.num.standby.replicas"])
def test_options_of_the_source_are_ignored_with_a_warning(name: str) -> None:
    if name != "includeHeaders":  # which both have
        assert warned({name: "x"}) == f"option {name} is ignored, it is an option of the source"


def test_an_unknown_name_gets_the_nearest_one() -> None:
    assert warned({"exactlyonc": "true"}).endswith("the nearest known one is exactlyOnce")
    assert warned({"spark.x": "1"}).endswith("a configuration of Spark's")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("linger.ms", "it is a property of Kafka's client: write kafka.linger.ms"),
        ("key.serializer", "it is a property of Kafka's client; keys are written as they are."),
        ("max.block.ms", "it is a property of Kafka's client that has no effect in kshare"),
        ("auto.offset.reset", "it is a property of Kafka's consumer"),
        ("kafka.auto.offset.reset", "it is a property of Kafka's consumer"),
        ("kafka.topic", "it is an option of kshare's: write topic"),
        ("inferSchema", "no such option is known"),
    ],
)
def test_a_hint_is_near_or_says_where_a_name_belongs(name: str, hint: str) -> None:
    found = warned({name: "x"})
    assert found.startswith(f"option {name} is ignored, {hint}")
    assert "nearest" not in found


def test_properties_without_effect_are_one_line() -> None:
    given = {"kafka.max.block.ms": "1", "kafka.metric.reporters": "x"}
    assert warned(given) == (
        "options kafka.max.block.ms, kafka.metric.reporters have no effect in kshare"
    )


def test_all_faults_are_told_at_once() -> None:
    found = faults(
        {"exactlyOnce": "yes", "kafka.acks": "2", "kafka.linger.ms": "-1", "topic": "a b"},
        [("key", "int")],
        base={},
    )
    assert [text.partition(": ")[0] for text in found] == [
        "kafka.bootstrap.servers",
        "topic",
        "column value",
        "column key",
        "exactlyOnce",
        "kafka.linger.ms",
        "kafka.acks",
    ]


def test_batch_queries_have_no_checkpoint() -> None:
    (found,) = faults({"exactlyOnce": "true"}, streaming=False)
    assert found.startswith("exactlyOnce: is for streams")
    assert not sink({"exactlyOnce": "false"}, streaming=False).exactly_once


# -- columns: KafkaWriter.validateQuery -----------------------------------------------------------


@pytest.mark.parametrize(
    "columns",
    [
        [("value", "binary")],
        [("value", "string"), ("key", "string collate UTF8_LCASE")],
        [("headers", HEADERS), ("partition", "int"), ("value", "string"), ("key", "binary")],
        [("value", "string"), ("topic", "int"), ("offset", "bigint")],
    ],
)
def test_columns_that_can_be_written(columns: Columns) -> None:
    assert parse_sink_options(BASE, columns, streaming=True).warnings == ()


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ([("key", "string")], "column value: is required and not there"),
        ([("Value", "string")], "column value: is required and not there"),
        ([("value", "int")], "column value: has type int; allowed: string or binary"),
        (
            [("value", "string"), ("key", "bigint")],
            "column key: has type bigint; allowed: string or binary",
        ),
        (
            [("value", "string"), ("partition", "bigint")],
            "column partition: has type bigint; allowed: int",
        ),
        (
            [("value", "string"), ("headers", "array<string>")],
            f"column headers: has type array<string>; allowed: {HEADERS}",
        ),
        ([("value", "int"), ("value", "string")], "column value: has type int; allowed: string or"),
    ],
)
def test_columns_that_cannot(columns: Columns, says: str) -> None:
    (found,) = faults({}, columns)
    assert found.startswith(says)


def test_a_topic_comes_from_the_option_or_the_column() -> None:
    assert (
        parse_sink_options(
            SERVERS, [("topic", "string"), ("value", "string")], streaming=True
        ).options.topic
        is None
    )
    (found,) = faults({}, [("value", "string")], base=SERVERS)
    assert found.startswith("topic: must be specified where no column 'topic' is written")
    (found,) = faults({}, [("value", "string"), ("topic", "binary")], base=SERVERS)
    assert found == "column topic: has type binary; allowed: string"


@pytest.mark.parametrize("topic", ["", "a/b", "..", "x" * 250])
def test_what_cannot_be_a_topic_is_refused(topic: str) -> None:
    (found,) = faults({"topic": topic})
    assert found.startswith(f"topic: {topic!r} cannot be a topic's name")


# -- the producer ---------------------------------------------------------------------------------

IN_FLIGHT = "max.in.flight.requests.per.connection"


@pytest.mark.parametrize(
    ("java", "settings_"),
    [
        ({"acks": "all"}, {}),
        ({"acks": "-1", "enable.idempotence": "true"}, {}),
        ({"enable.idempotence": "false"}, {"enable.idempotence": False, IN_FLIGHT: 5}),
        (
            {"enable.idempotence": "false", "acks": "0"},
            {"enable.idempotence": False, "acks": 0, IN_FLIGHT: 5},
        ),
        (
            {"enable.idempotence": "false", IN_FLIGHT: "2000000"},
            {"enable.idempotence": False, IN_FLIGHT: 1_000_000},
        ),
        ({"batch.size": "0"}, {"batch.size": 1}),
        ({"batch.size": "65536"}, {"batch.size": 65536}),
        ({"linger.ms": "50"}, {"linger.ms": 50}),
        ({"delivery.timeout.ms": "60000"}, {"message.timeout.ms": 60000}),
        (
            {"delivery.timeout.ms": "9000", "request.timeout.ms": "9000"},
            {"message.timeout.ms": 9000, "request.timeout.ms": 9000},
        ),
        (  # librdkafka wants the linger to be less
            {"delivery.timeout.ms": "20", "request.timeout.ms": "20"},
            {"message.timeout.ms": 20, "request.timeout.ms": 20, "linger.ms": 19},
        ),
        ({"linger.ms": "900000"}, {"linger.ms": 900_000, "message.timeout.ms": 930_000}),
        ({"buffer.memory": "33554432"}, {"queue.buffering.max.kbytes": 32768}),
        ({"buffer.memory": "0"}, {"queue.buffering.max.kbytes": 1}),
        ({"max.request.size": "5000000"}, {"message.max.bytes": 5_000_000}),
        ({"max.request.size": "10"}, {"message.max.bytes": 1000}),
        ({"retries": "7"}, {"retries": 7}),
        ({IN_FLIGHT: "5"}, {IN_FLIGHT: 5}),
        ({"request.timeout.ms": "5000"}, {"request.timeout.ms": 5000}),
        ({"compression.type": "ZSTD"}, {"compression.type": "zstd"}),
        (
            {"compression.type": "gzip", "compression.gzip.level": "9"},
            {"compression.type": "gzip", "compression.level": 9},
        ),
        (
            {"compression.type": "gzip", "compression.gzip.level": "-1"},
            {"compression.type": "gzip"},
        ),
        (
            {"compression.type": "lz4", "compression.zstd.level": "3"},
            {"compression.type": "lz4"},
        ),
        ({"partitioner.ignore.keys": "true"}, {"partitioner": "random"}),
        (
            {"partitioner.class": "org.apache.kafka.clients.producer.internals.DefaultPartitioner"},
            {},
        ),
    ],
)
def test_properties_of_javas_producer(
    java: dict[str, str], settings_: dict[str, str | int | bool]
) -> None:
    found = sink({f"kafka.{name}": value for name, value in java.items()})
    assert found.producer == {**DEFAULTS, **settings_}


@pytest.mark.parametrize(
    ("codec", "level", "taken"), [("zstd", 22, 12), ("zstd", -5, 0), ("lz4", 17, 12)]
)
def test_compression_that_librdkafka_has_not_is_taken_as_the_nearest(
    codec: str, level: int, taken: int
) -> None:
    name = f"kafka.compression.{codec}.level"
    assert warned({"kafka.compression.type": codec, name: str(level)}) == (
        f"option {name} is taken as {taken}, which librdkafka has"
    )


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("acks", "2", "is not known (given: '2'); allowed: all (default), -1, 0, 1"),
        ("compression.type", "br", "is not known (given: 'br'); allowed: none, gzip, snappy, lz4"),
        ("compression.gzip.level", "10", "is wrong (given: '10'); wanted an integer from -1 to 9"),
        ("compression.lz4.level", "0", "is wrong (given: '0'); wanted an integer from 1 to 17"),
        ("compression.zstd.level", "23", "is wrong (given: '23'); wanted an integer from -131072"),
        ("batch.size", "-1", "is wrong (given: '-1'); wanted an integer from 0 to 2147483647"),
        ("linger.ms", "x", "is wrong (given: 'x'); wanted an integer from 0 to"),
        ("buffer.memory", "-1", "is wrong"),
        ("max.request.size", "-1", "is wrong"),
        ("retries", "-1", "is wrong (given: '-1'); wanted an integer from 0 to 2147483647"),
        (IN_FLIGHT, "0", "is wrong (given: '0'); wanted an integer from 1 to 2147483647"),
        ("request.timeout.ms", "0", "is wrong"),
        ("enable.idempotence", "x", "is wrong (given: 'x'); wanted true or false"),
        ("partitioner.ignore.keys", "x", "is wrong (given: 'x'); wanted true or false"),
        ("partitioner.class", "a.B", "names a Java class, which kshare cannot load (given: 'a.B')"),
        ("transactional.id", SECRET, "is not supported; set exactlyOnce=true"),
        ("transaction.two.phase.commit.enable", "true", "is not supported"),
        ("interceptor.classes", "a.B", "is not supported; interceptors can change records"),
        ("key.serializer", "a.B", "is not supported; keys are written as they are. Use DataFrame"),
        ("value.serializer", "a.B", "is not supported; values are written as they are. Use Data"),
        (
            "delivery.timeout.ms",
            "29999",
            "must not be less than kafka.request.timeout.ms, which is 30000 ",
        ),
    ],
)
def test_properties_that_are_refused(name: str, value: str, says: str) -> None:
    (found,) = faults({f"kafka.{name}": value})
    assert found.startswith(f"kafka.{name}: {says}")


def test_a_linger_that_is_given_counts_for_the_delivery() -> None:
    name = "kafka.delivery.timeout.ms"
    for linger in (0, 50):
        given_ = {"kafka.linger.ms": str(linger)}
        assert sink({**given_, name: str(30_000 + linger)})
        (found,) = faults({**given_, name: str(29_999 + linger)})
        assert f"kafka.linger.ms + kafka.request.timeout.ms, which are {30_000 + linger} " in found


def test_a_delivery_as_long_as_a_request_is_taken_in_transactions_too() -> None:
    given_ = {"kafka.delivery.timeout.ms": "15", "kafka.request.timeout.ms": "15"}
    found = sink({**given_, "exactlyOnce": "true"}).producer
    assert (found["message.timeout.ms"], found["linger.ms"]) == (15, 14)


@pytest.mark.parametrize("name", sorted(NOT_BUILT))
def test_what_would_change_safety_is_refused(name: str) -> None:
    assert faults({f"kafka.{name}": SECRET}) == (f"kafka.{name}: not built yet: {NOT_BUILT[name]}",)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("auto.offset.reset", "is ignored, it is a property of Kafka's consumer"),
        ("group.id", "is ignored, it is a property of Kafka's consumer"),
        ("fetch.min.bytes", "is ignored, it is a property of Kafka's consumer"),
        ("auto.commit.interval.ms", "is ignored, it is a property of Kafka's consumer"),
        ("group.remote.assignor", "is ignored, it is a property of Kafka's consumer"),
        ("max.partition.fetch.bytes", "is ignored, it is a property of Kafka's consumer"),
        ("partition.assignment.strategy", "is ignored, it is a property of Kafka's consumer"),
        ("max.block.ms", "has no effect in kshare"),
        ("metrics.num.samples", "has no effect in kshare"),
        ("transaction.timeout.ms", "has no effect without exactlyOnce=true"),
        (
            "message.timeout.ms",
            "is ignored, it is a name of librdkafka; kshare takes Kafka's Java ",
        ),
        (
            "lingers.ms",
            "is ignored, no such property is known; the nearest known one is kafka.linge",
        ),
    ],
)
def test_properties_without_effect_get_a_warning(name: str, says: str) -> None:
    assert warned({f"kafka.{name}": "10000"}).startswith(f"option kafka.{name} {says}")


@pytest.mark.parametrize(("name", "value"), [("acks", "1"), ("retries", "0"), (IN_FLIGHT, "6")])
def test_idempotence_gives_way_or_insists_as_in_java(name: str, value: str) -> None:
    given_ = {f"kafka.{name}": value}
    assert warned(given_).startswith(f"option kafka.{name} turns idempotence off")
    parsed = parse_sink_options({**BASE, **given_}, streaming=True)
    assert parsed.options.producer["enable.idempotence"] is False
    # A repetition may come behind what was sent meanwhile: as few requests as in Java.
    assert parsed.options.producer[IN_FLIGHT] == (6 if name == IN_FLIGHT else 5)
    for more in ({"kafka.enable.idempotence": "true"}, {"exactlyOnce": "true"}):
        (found,) = faults({**given_, **more})
        ((option, text),) = more.items()
        assert found.startswith(f"kafka.{name}: contradicts {option}={text} (given: {value!r})")


def test_a_request_lasts_no_longer_than_its_transaction() -> None:
    given_ = {"kafka.transaction.timeout.ms": "10000", "kafka.request.timeout.ms": "10101"}
    (found,) = faults({"exactlyOnce": "true", **given_})
    assert found.startswith(
        "kafka.request.timeout.ms: must not be higher than transaction.timeout.ms (given: '10101')"
        "; wanted 10000 at most"
    )
    sink({"exactlyOnce": "true", **given_, "kafka.request.timeout.ms": "10100"})
    assert warned(given_).startswith("option kafka.transaction.timeout.ms has no effect")


def test_exactly_once_is_idempotent() -> None:
    found = sink({"exactlyOnce": "true", "kafka.transaction.timeout.ms": "5000"})
    assert found.exactly_once
    assert found.producer == {
        **DEFAULTS,
        "linger.ms": 20,
        "message.timeout.ms": 5000,
        "socket.timeout.ms": 5000,
        "transaction.timeout.ms": 5000,
    }
    assert sink({"exactlyOnce": "true"}).producer == {
        **DEFAULTS,
        "linger.ms": 20,
        "message.timeout.ms": 120_000,
        "socket.timeout.ms": 60_000,
        "transaction.timeout.ms": 900_000,
    }
    own = sink({"exactlyOnce": "true", "kafka.delivery.timeout.ms": "60000"}).producer
    assert own["message.timeout.ms"] == 60_000
    assert faults({"exactlyOnce": "true", "kafka.enable.idempotence": "false"}) == (
        "kafka.enable.idempotence: must be true with exactlyOnce=true (given: 'false')",
    )


@pytest.mark.parametrize("timeout", [2**31 - 101, 2**31 - 100, 2**31 - 1])
def test_the_longest_transaction_is_one_that_librdkafka_takes(timeout: int) -> None:
    found = sink({"exactlyOnce": "true", "kafka.transaction.timeout.ms": str(timeout)})
    assert found.producer["transaction.timeout.ms"] == 2**31 - 101


NUMBERS = {
    "batch.size": (0, 2**31 - 1),
    "delivery.timeout.ms": (1, 2**31 - 1),
    "buffer.memory": (0, 2**63 - 1),
    "linger.ms": (0, 2**63 - 1),
    IN_FLIGHT: (1, 2**31 - 1),
    "max.request.size": (0, 2**31 - 1),
    "request.timeout.ms": (1, 2**31 - 1),
    "retries": (0, 2**31 - 1),
    "transaction.timeout.ms": (1000, 2**31 - 1),
    "retry.backoff.ms": (0, 2**63 - 1),
    "reconnect.backoff.max.ms": (0, 2**63 - 1),
    "metadata.max.age.ms": (0, 2**63 - 1),
    "connections.max.idle.ms": (-1, 2**63 - 1),
    "send.buffer.bytes": (-1, 2**31 - 1),
    "socket.connection.setup.timeout.ms": (1, 2**63 - 1),
}


@examples(60)
@given(st.data(), st.booleans())
def test_librdkafka_takes_whatever_java_takes(data: st.DataObject, exactly_once: bool) -> None:
    names = data.draw(st.sets(st.sampled_from(sorted(NUMBERS))))
    given_ = {f"kafka.{name}": str(data.draw(st.integers(*NUMBERS[name]))) for name in names}
    if exactly_once:
        given_ = {**given_, "exactlyOnce": "true"}
        given_.pop(f"kafka.{IN_FLIGHT}", None)
        if given_.get("kafka.retries") == "0":
            del given_["kafka.retries"]
    try:
        parsed = parse_sink_options({**BASE, **given_}, streaming=True)
    except OptionsError as error:
        known = "kafka.delivery.timeout.ms: must not be less", "higher than transaction.timeout.ms"
        assert any(fault in str(error) for fault in known)  # noqa: PT017
    else:
        accepted(parsed.options)


def test_no_text_shows_a_password() -> None:
    jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required "
    given_ = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{jaas}username="u" password="{SECRET}";',
    }
    parsed = parse_sink_options({**BASE, **given_}, streaming=True)
    again = pickle.loads(pickle.dumps(parsed))
    assert again == parsed
    assert SECRET not in f"{parsed!r} {again!r}"
    assert again.options.kafka.sasl_password.reveal() == SECRET
    broken = {**given_, "kafka.sasl.jaas.config": f"{jaas} password={SECRET};", "kafka.acks": "x"}
    assert SECRET not in " ".join(faults(broken))
