"""The source's options; topics, offsets, security and faults have files of their own."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.options import EARLIEST, LATEST, KafkaConfig, Subscribe
from kshare.options.frozen import Properties
from kshare.options.kinds import BOOLEAN, integer, parse_delay, parse_duration, parse_keys
from kshare.options.model import DEFAULT_COLUMNS, SOURCE_COLUMNS
from kshare.options.raw import Faults
from tests.support.options import options, problem

INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1

# -- defaults -----------------------------------------------------------------------------------


def test_times_that_are_waited_for_are_a_day_at_most() -> None:
    """Java allows more than sockets and locks can wait."""
    for ms, seconds in ((1, 0.001), (86_400_001, 86_400), (2**63 - 1, 86_400)):
        kafka = KafkaConfig(
            bootstrap_servers=(),
            connection_setup_timeout_ms=ms,
            metadata_max_age_ms=ms,
            offset_retry_ms=ms,
        )
        assert kafka.connection_setup_seconds == seconds
        assert kafka.metadata_max_age_seconds == seconds
        assert kafka.offset_retry_seconds == seconds


def test_defaults_of_a_stream() -> None:
    found = options()
    assert found.topics == Subscribe(("t",))
    assert (found.starting, found.ending) == (LATEST, LATEST)
    assert {
        name: getattr(found, name)
        for name in (f.name for f in dataclasses.fields(found))
        if name not in {"topics", "starting", "ending", "kafka"}
    } == {
        "max_offsets_per_trigger": None,
        "min_offsets_per_trigger": None,
        "max_trigger_delay_seconds": 900.0,
        "fail_on_data_loss": True,
        "max_record_bytes": 134_217_728,
        "leaves_out_large": False,
        "include_headers": False,
        "columns": None,
        "keys": None,
        "min_partitions": None,
        "min_partitions_auto": False,
        "max_tasks": None,
        "max_records_per_partition": None,
        "key_ranges": None,
        "split_by": "key",
        "range_assignor": "round-robin",
        "max_records_per_task": None,
        "target_task_seconds": None,
        "real_time_seconds": None,
        "real_time_topic": None,
        "parked_keys": (),
        "max_ranges_in_checkpoint": 10_000,
        "max_offsets_ahead": None,
        "max_time_ahead_seconds": None,
        "commit_offsets": False,
        "individual_commit_topic": None,
        "max_bytes_key_range_results": 209_715_200,
        "task_assignor": None,
        "task_assignor_configs": {},
        "typed_rows": None,
    }
    assert not found.limits_records


def test_a_batch_begins_at_the_earliest_offset_and_ends_at_the_latest() -> None:
    found = options(streaming=False)
    assert (found.starting, found.ending) == (EARLIEST, LATEST)


def test_defaults_of_kafka_are_those_of_the_documentation() -> None:
    kafka = options().kafka
    assert kafka == KafkaConfig(
        bootstrap_servers=(("broker", 9092),),
        properties=Properties({"bootstrap.servers": "broker:9092"}),
        offset_attempts=3,
        offset_retry_ms=1000,
    )
    assert (kafka.security_protocol, kafka.uses_tls, kafka.uses_sasl) == ("PLAINTEXT", False, False)
    assert (kafka.request_timeout_ms, kafka.api_timeout_ms) == (30_000, 60_000)
    assert (kafka.max_partition_fetch_bytes, kafka.receive_buffer_bytes) == (4 << 20, 4 << 20)
    assert kafka.send_buffer_bytes == 128 << 10
    assert (kafka.reconnect_backoff_ms, kafka.reconnect_backoff_max_ms) == (50, 1000)
    assert (kafka.client_id, kafka.client_rack, kafka.group_id) == ("kshare", None, None)
    assert kafka.check_crcs
    assert not kafka.read_committed
    assert kafka.read_timeout_ms == 60_000
    assert (kafka.sasl_username, kafka.sasl_password) == (None, None)


# -- every number: its bounds, and what is said beyond them ---------------------------------------

NUMBERS = [
    ("maxOffsetsPerTrigger", "max_offsets_per_trigger", 1, LONG_MAX),
    ("maxRecordBytes", "max_record_bytes", 1_024, INT_MAX),
    ("minOffsetsPerTrigger", "min_offsets_per_trigger", 1, LONG_MAX),
    ("maxTasks", "max_tasks", 1, INT_MAX),
    ("minPartitions", "min_partitions", 1, INT_MAX),
    ("maxRecordsPerPartition", "max_records_per_partition", 1, LONG_MAX),
    ("keyRanges", "key_ranges", 1, 1 << 16),
    ("maxRecordsPerTask", "max_records_per_task", 1, LONG_MAX),
    ("max.bytes.key.range.results", "max_bytes_key_range_results", 0, LONG_MAX),
    ("maxRangesInCheckpoint", "max_ranges_in_checkpoint", 1, INT_MAX),
    ("maxOffsetsAhead", "max_offsets_ahead", 1, LONG_MAX),
    ("kafkaConsumer.pollTimeoutMs", "kafka.poll_timeout_ms", 1, LONG_MAX),
    ("fetchOffset.numRetries", "kafka.offset_attempts", 1, INT_MAX),
    ("fetchOffset.retryIntervalMs", "kafka.offset_retry_ms", 0, LONG_MAX),
    ("kafka.connections.max.idle.ms", "kafka.connections_max_idle_ms", -1, LONG_MAX),
    ("kafka.default.api.timeout.ms", "kafka.api_timeout_ms", 1, INT_MAX),
    ("kafka.fetch.max.bytes", "kafka.fetch_max_bytes", 0, INT_MAX),
    ("kafka.fetch.min.bytes", "kafka.fetch_min_bytes", 0, INT_MAX),
    ("kafka.fetch.max.wait.ms", "kafka.fetch_max_wait_ms", 0, 29_999),
    ("kafka.max.partition.fetch.bytes", "kafka.max_partition_fetch_bytes", 0, INT_MAX),
    ("kafka.metadata.max.age.ms", "kafka.metadata_max_age_ms", 0, LONG_MAX),
    ("kafka.receive.buffer.bytes", "kafka.receive_buffer_bytes", -1, INT_MAX),
    ("kafka.request.timeout.ms", "kafka.request_timeout_ms", 1, INT_MAX),
    ("kafka.retry.backoff.ms", "kafka.retry_backoff_ms", 0, LONG_MAX),
    ("kafka.retry.backoff.max.ms", "kafka.retry_backoff_max_ms", 0, LONG_MAX),
    (
        "kafka.socket.connection.setup.timeout.ms",
        "kafka.connection_setup_timeout_ms",
        1,
        LONG_MAX,
    ),
    ("kafka.send.buffer.bytes", "kafka.send_buffer_bytes", -1, INT_MAX),
    ("kafka.reconnect.backoff.ms", "kafka.reconnect_backoff_ms", 0, LONG_MAX),
    ("kafka.reconnect.backoff.max.ms", "kafka.reconnect_backoff_max_ms", 0, LONG_MAX),
    ("kafka.sasl.login.connect.timeout.ms", None, 1, INT_MAX),
    ("kafka.sasl.login.read.timeout.ms", None, 1, INT_MAX),
    ("kafka.sasl.login.retry.backoff.ms", None, 0, LONG_MAX),
    ("kafka.sasl.login.retry.backoff.max.ms", None, 0, LONG_MAX),
]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"ms": "7000"}, (7000, 7000)),  # as in Java: then pauses do not grow
        ({"ms": "7"}, (7, 7)),
        ({"max.ms": "7"}, (50, 7)),
        ({"ms": "7", "max.ms": "9"}, (7, 9)),
    ],
)
def test_a_first_pause_alone_is_the_longest_too(
    given: dict[str, str], found: tuple[int, int]
) -> None:
    kafka = options({f"kafka.reconnect.backoff.{name}": text for name, text in given.items()}).kafka
    assert (kafka.reconnect_backoff_ms, kafka.reconnect_backoff_max_ms) == found


def value_of(found: Any, path: str) -> Any:
    for name in path.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize(("name", "path", "lowest", "highest"), NUMBERS)
def test_a_number_is_taken_within_its_bounds(
    name: str, path: str | None, lowest: int, highest: int
) -> None:
    for value in (lowest, min(highest, lowest + 7), highest):
        more = {"kafka.request.timeout.ms": "1000000"} if value == 29_999 else {}
        found = options({name: f" {value} ", **more})
        if path is not None:
            assert value_of(found, path) == value


@pytest.mark.parametrize(("name", "path", "lowest", "highest"), NUMBERS)
@pytest.mark.parametrize("text", ["{low}", "{high}", "", "1.5", "1e3", "ten", "0x10", "1_000", "٣"])
def test_a_number_beyond_its_bounds_is_refused_with_them(
    name: str, path: str | None, lowest: int, highest: int, text: str
) -> None:
    value = text.format(low=lowest - 1, high=highest + 1)
    found = problem({name: value})
    assert found.startswith(f"{name}: ")
    if highest == 29_999 and text == "{high}":
        assert "must be less than kafka.request.timeout.ms, which is 30000" in found
        return
    shown = INT_MAX if highest == 29_999 else highest
    auto = {"maxTasks": ", or auto", "minPartitions": ", or auto in streams"}.get(name, "")
    assert found == (
        f"{name}: is wrong (given: {value!r}); wanted an integer from {lowest} to {shown}{auto}"
    )


BOOLEANS = [
    ("failOnDataLoss", "fail_on_data_loss"),
    ("includeHeaders", "include_headers"),
    ("kafka.check.crcs", "kafka.check_crcs"),
]


@pytest.mark.parametrize(("name", "path"), BOOLEANS)
@pytest.mark.parametrize(("text", "value"), [("true", True), (" FALSE ", False), ("True", True)])
def test_a_boolean_is_taken_in_any_case(name: str, path: str, text: str, value: bool) -> None:
    assert value_of(options({name: text}), path) is value


@pytest.mark.parametrize(
    "name",
    [*(name for name, _ in BOOLEANS), "kafka.sasl.oauthbearer.header.urlencode"],
)
def test_another_word_is_no_boolean(name: str) -> None:
    assert problem({name: "yes"}) == f"{name}: is wrong (given: 'yes'); wanted true or false"


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("splitBy", "allowed: key (default), offset"),
        ("startingOffsetsByTimestampStrategy", "allowed: error (default), latest"),
        ("kafka.isolation.level", "allowed: read_uncommitted, read_committed"),
        (
            "kafka.client.dns.lookup",
            "allowed: use_all_dns_ips, resolve_canonical_bootstrap_servers_only",
        ),
        ("kafka.security.protocol", "allowed: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
    ],
)
def test_a_word_of_a_list_is_refused_with_the_list(name: str, allowed: str) -> None:
    assert problem({name: "other"}) == f"{name}: is not known (given: 'other'); {allowed}"


def test_words_are_taken_in_any_case() -> None:
    found = options({"splitBy": "OFFSET", "kafka.isolation.level": "Read_Committed"})
    assert found.split_by == "offset"
    assert found.kafka.read_committed


@given(st.integers(-(2**70), 2**70), st.integers(-(2**66), 2**66), st.integers(0, 2**66))
def test_an_integer_is_int_within_bounds(value: int, lowest: int, width: int) -> None:
    faults = Faults()
    parsed = faults.parse("o", str(value), integer(lowest, lowest + width))
    inside = lowest <= value <= lowest + width
    assert parsed == (value if inside else None)
    assert bool(faults.problems) is not inside


@given(st.text())
def test_a_boolean_is_one_of_two_words(text: str) -> None:
    faults = Faults()
    parsed = faults.parse("o", text, BOOLEAN)
    word = text.strip().lower()
    assert parsed is {"true": True, "false": False}.get(word)
    assert bool(faults.problems) is (parsed is None)


# -- how far a stream goes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *[("15m", 900), ("30s", 30), ("500ms", 0.5), ("250", 0.25), ("2 ", 0.002), ("1H", 3600)],
        *[("1d", 86400), ("3min", 180), ("1500us", 0.001), ("0s", 0)],
    ],
)
def test_delays_are_read_as_spark_reads_them(text: str, seconds: float) -> None:
    assert parse_delay(text) == seconds
    assert options({"maxTriggerDelay": text}).max_trigger_delay_seconds == seconds


@pytest.mark.parametrize("text", ["", "15 m", "1.5m", "m", "-1s", "5 minutes", "1w", "9" * 30])
def test_what_spark_does_not_read_is_no_delay(text: str) -> None:
    assert problem({"maxTriggerDelay": text}).startswith(
        "maxTriggerDelay: is not a time; write for example 15m, 30s, 500ms (us, ms, s, m, h, d)"
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *[("10s", 10), ("500ms", 0.5), ("2 minutes", 120), ("1.5 h", 5400), ("1 Minute", 60)],
        *[("3 sec", 3), ("1 day", 86400), ("20us", 2e-5), ("7 milliseconds", 0.007)],
    ],
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)
    found = options({"targetTaskDuration": text})
    assert found.target_task_seconds == pytest.approx(seconds)
    assert found.limits_records


@pytest.mark.parametrize("text", ["", "10", "0s", "-1s", "1 fortnight", "ten s", "1s2", "1e400s"])
def test_what_has_no_unit_is_no_duration(text: str) -> None:
    assert "is not a time above 0 with a unit" in problem({"targetTaskDuration": text})


@given(st.integers(1, 10**8), st.sampled_from([("ms", 1), ("s", 1000), ("m", 60_000)]))
def test_a_delay_of_whole_milliseconds_is_exact(number: int, unit: tuple[str, int]) -> None:
    name, ms = unit
    assert parse_delay(f"{number}{name}") == number * ms / 1000
    assert parse_duration(f"{number} {name}") == pytest.approx(number * ms / 1000)


@pytest.mark.parametrize(
    ("text", "ms"), [("10m", 600_000), ("1.5 h", 5_400_000), ("20us", 1), ("off", None)]
)
def test_how_far_ahead_in_time_is_a_duration_or_off(text: str, ms: int | None) -> None:
    found = options({"maxTimeAhead": text})
    assert found.max_time_ahead_ms == ms
    assert found.max_time_ahead_seconds is not None  # it is given, and not warned of
    assert options().max_time_ahead_ms is options().max_time_ahead_seconds is None


def test_an_option_that_is_gone_is_refused_and_says_what_to_use_instead() -> None:
    found = problem({"MaxBytesPerTrigger": "100m"})
    assert "maxBytesPerTrigger: is no option any more" in found
    assert "maxOffsetsPerTrigger" in found
    assert "targetTaskDuration" in found


def test_how_far_ahead_is_neither() -> None:
    assert "10s, 500ms, 2 minutes, or off" in problem({"maxTimeAhead": "never"})


def test_a_limit_on_records_limits_records() -> None:
    assert options({"maxRecordsPerTask": "9"}).limits_records


@given(st.lists(st.binary(max_size=6)))
def test_parked_keys_are_what_was_written(keys: list[bytes]) -> None:
    written = json.dumps([{"hex": key.hex()} for key in keys])
    assert parse_keys(written) == tuple(dict.fromkeys(keys))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_parked_texts_are_utf_8(keys: list[str]) -> None:
    assert parse_keys(json.dumps(keys)) == tuple(dict.fromkeys(key.encode() for key in keys))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("customer-7", "is not JSON"),
        ('"k"', "must be a JSON list"),
        ("[1]", "entry 0 must be a string"),
        ('["a", {"hex": "0"}]', "entry 1 cannot be read"),
        ('[{"hex": 1}]', "entry 0 must be a string"),
        ('[{"hex": "00", "x": 1}]', "entry 0 must be a string"),
        ('["\\ud800"]', "entry 0 cannot be read"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_what_names_no_keys_is_refused(text: str, says: str) -> None:
    assert problem({"parkedKeys": text}).startswith(f"parkedKeys: {says}")


# -- columns, keys, tasks -------------------------------------------------------------------------


@given(st.permutations(SOURCE_COLUMNS), st.integers(1, len(SOURCE_COLUMNS)), st.data())
def test_columns_are_those_named_in_that_order(
    order: list[str], count: int, data: st.DataObject
) -> None:
    wanted = tuple(order[:count])
    case = st.sampled_from([str.upper, str.lower, str.title])
    written = ", ".join(data.draw(case)(name) for name in wanted)
    for streaming in (True, False):
        found = options({"columns": written}, streaming=streaming)
        assert found.columns == found.column_names == wanted
        assert found.include_headers is ("headers" in wanted)


def test_without_columns_all_are_there_and_headers_if_wanted() -> None:
    assert options().column_names == DEFAULT_COLUMNS == SOURCE_COLUMNS[:-1]
    assert options({"includeHeaders": "true"}).column_names == SOURCE_COLUMNS
    both = {"columns": "headers,key", "includeHeaders": "true"}
    assert options(both).column_names == ("headers", "key")


KNOWN = (
    "known are: key, value, topic, partition, offset, timestamp, timestampType, headers; of typed "
    "rows: keyError, keyBytes, keySchemaId, valueError, valueBytes, valueSchemaId"
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", f"names no column; {KNOWN} (given: '')"),
        (" ", f"names no column; {KNOWN} (given: ' ')"),
        ("key,,value", f"has no column ''; {KNOWN} (given: 'key,,value')"),
        ("key,vale", f"has no column 'vale'; {KNOWN} (given: 'key,vale')"),
        ("key,KEY", f"names 'KEY' twice; {KNOWN} (given: 'key,KEY')"),
        (
            "foo,key,bar,key",
            f"has no column 'foo', 'bar' and names 'key' twice; {KNOWN} (given: 'foo,key,bar,key')",
        ),
    ],
)
def test_unknown_and_repeated_columns_are_refused(text: str, says: str) -> None:
    for streaming in (True, False):
        assert problem({"columns": text}, streaming=streaming) == f"columns: {says}"


def test_columns_without_headers_contradict_include_headers() -> None:
    assert problem({"columns": "key", "includeHeaders": "true"}) == (
        "columns: lacks headers, which includeHeaders=true adds (given: 'key'); "
        "add headers, or leave out includeHeaders"
    )


@pytest.mark.parametrize("streaming", [True, False])
def test_keys_are_written_like_parked_ones(streaming: bool) -> None:
    found = options({"keys": '["a", {"hex": "00ff"}, "a"]'}, streaming=streaming)
    assert found.keys == (b"a", b"\x00\xff")
    assert problem({"keys": "[]"}, streaming=streaming) == (
        "keys: names no key; leave it out to read all keys (given: '[]')"
    )
    assert problem({"keys": "a"}, streaming=streaming).startswith("keys: is not JSON")


def test_numbers_of_tasks_may_be_left_to_kshare() -> None:
    for streaming in (True, False):
        assert options({"maxTasks": " AUTO "}, streaming=streaming).max_tasks == "auto"
    found = options({"minPartitions": "auto"})
    assert (found.min_partitions, found.min_partitions_auto) == (None, True)
    assert problem({"minPartitions": "auto"}, streaming=False) == (
        "minPartitions: is for streams (given: 'auto'); give a number in batch queries"
    )


def test_a_wrong_number_of_tasks_may_have_been_auto() -> None:
    for streaming in (True, False):
        assert problem({"maxTasks": "all"}, streaming=streaming) == (
            "maxTasks: is wrong (given: 'all'); wanted an integer from 1 to 2147483647, or auto"
        )
    assert problem({"minPartitions": "all"}).endswith("2147483647, or auto in streams")


def test_a_long_value_is_not_shown_whole() -> None:
    found = problem({"splitBy": "x" * 10_000})
    assert len(found) < 300
