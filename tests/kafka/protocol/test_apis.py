"""The table of requests: it is the code's, and says what a broker lacks."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.fetch import FetchRequest as TheirFetchRequest
from kafka.protocol.consumer.fetch import FetchResponse as TheirFetchResponse

import kshare
from kshare import kafka_python
from kshare.core.progress import TopicPartition
from kshare.kafka.protocol.apis import APIS, Feature, api_of, lacks
from kshare.kafka.protocol.fetch import (
    FetchAnswer,
    FetchRequest,
    PartitionFetch,
    parse_fetch_response,
)
from tests.support.effort import examples
from tests.support.groups import group_config
from tests.support.services import EVENT_HUBS

_classes: list[Any] = [each for each in vars(kafka_python).values() if inspect.isclass(each)]
REQUESTS = {each.API_KEY: each for each in _classes if each.__name__.endswith("Request")}
REQUESTS[FetchRequest.API_KEY] = TheirFetchRequest  # ours is coded by hand


def test_each_request_of_ours_is_in_the_table() -> None:
    own = {key: api for key, api in APIS.items() if not api.by_librdkafka}
    assert own.keys() == REQUESTS.keys()
    for key, api in own.items():
        assert f"{api.name}Request" == REQUESTS[key].name
        assert 0 <= api.lowest <= api.highest <= REQUESTS[key].max_version
        assert api_of(key) is api


def calls_of_version() -> Iterator[tuple[str, ast.Call]]:
    root = Path(kshare.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if is_call and node.func.attr == "version" and node.args:  # type: ignore[attr-defined]
                yield path.relative_to(root).as_posix(), node  # type: ignore[misc]


def test_no_range_of_versions_is_written_elsewhere() -> None:
    """Who must narrow it names the version by what it has, such as a group.instance.id."""
    narrowed = {
        "group/membership/member_link.py": {
            "request, None if instance is None else static, static"
        },
        "kafka/coordinator.py": {"OffsetCommitRequest, _STATIC_VERSION if static else None"},
    }
    found: dict[str, set[str]] = {}
    for file, call in calls_of_version():
        if len(call.args) > 1:
            found.setdefault(file, set()).add(", ".join(map(ast.unparse, call.args)))
    assert found == narrowed


def test_every_version_is_asked_for_by_the_table() -> None:
    """A request says ``version=connection.version(...)``, or a version that the table has."""
    root = Path(kshare.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func).rpartition(".")[2]
            given = {word.arg: word.value for word in node.keywords}
            if name.endswith("Request") and isinstance(given.get("version"), ast.Constant):
                assert (name, ast.unparse(given["version"])) == ("ApiVersionsRequest", "0")


def test_a_full_broker_lacks_nothing() -> None:
    assert lacks(dict.fromkeys(APIS, (0, 30))) == []
    assert lacks({key: (api.highest, api.highest) for key, api in APIS.items()}) == []


def test_what_is_missing_says_what_for() -> None:
    offered = {key: (0, api.highest) for key, api in APIS.items()}
    del offered[61]
    offered[1] = (0, 3)
    offered[3] = (13, 14)
    assert [(each.api.name, each.offered) for each in lacks(offered)] == [
        ("Fetch", (0, 3)),
        ("Metadata", (13, 14)),
        ("DescribeProducers", None),
    ]
    assert lacks(offered)[-1].api.needed_by == (Feature.FENCING,)


def test_event_hubs_has_all_that_reading_needs() -> None:
    offered = {key: (0, api.highest) for key, api in APIS.items()}
    names = {api.name: key for key, api in APIS.items()}
    for name, (lowest, highest) in EVENT_HUBS.items():
        if highest < 0:
            del offered[names[name]]
        else:
            offered[names[name]] = (lowest, highest)
    touched = {feature for lack in lacks(offered) for feature in lack.api.needed_by}
    assert touched == {Feature.FENCING, Feature.CLEAN_UP}


# -- Fetch, version by version -----------------------------------------------------------------

an_offset = st.integers(-1, 2**62)
answers = st.builds(
    FetchAnswer,
    st.integers(0, 100),
    an_offset,
    an_offset,
    st.lists(st.tuples(st.integers(0, 9), an_offset), max_size=2).map(tuple),
    st.binary(max_size=9).map(memoryview),
    st.none() | st.integers(0, 5),
    an_offset,
)


a_size = st.integers(0, 2**31 - 1)
by_partition = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["t", "ü"]), st.integers(0, 3)),
    st.tuples(st.integers(0, 2**62), a_size),
    max_size=4,
)


@pytest.mark.parametrize("version", range(APIS[1].lowest, APIS[1].highest + 1))
@examples(25)
@given(
    wanted=by_partition,
    limits=st.tuples(a_size, a_size, a_size),
    committed=st.booleans(),
    rack=st.sampled_from(["", "east"]),
)
def test_a_fetch_request_is_the_same_in_each_version(
    version: int,
    wanted: dict[TopicPartition, tuple[int, int]],
    limits: tuple[int, int, int],
    committed: bool,
    rack: str,
) -> None:
    """To the byte, as kafka-python writes it."""
    wait_ms, min_bytes, max_bytes = limits
    kafka = replace(
        group_config("localhost:9092").kafka,
        fetch_max_wait_ms=wait_ms,
        fetch_min_bytes=min_bytes,
        read_committed=committed,
    )
    fetches = [PartitionFetch(tp, *asked) for tp, asked in sorted(wanted.items())]
    ours = FetchRequest(version, kafka, fetches, max_bytes=max_bytes, rack_id=rack)
    topic = TheirFetchRequest.FetchTopic
    theirs = TheirFetchRequest(
        version=version,
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=int(committed),
        session_id=0,
        session_epoch=-1,
        topics=[
            topic(
                topic=name,
                partitions=[
                    topic.FetchPartition(
                        partition=tp.partition,
                        current_leader_epoch=-1,
                        fetch_offset=offset,
                        log_start_offset=-1,
                        partition_max_bytes=size,
                    )
                    for tp, offset, size in fetches
                    if tp.topic == name
                ],
            )
            for name in sorted({tp.topic for tp in wanted})
        ],
        forgotten_topics_data=[],
        rack_id=rack,
    )
    for request in (ours, theirs):
        request.with_header(correlation_id=7, client_id="kshäre")
    for header, framed in ((True, True), (True, False), (False, False)):
        assert ours.encode(header=header, framed=framed) == theirs.encode(
            header=header, framed=framed
        )


@pytest.mark.parametrize("version", range(APIS[1].lowest, APIS[1].highest + 1))
@examples(25)
@given(
    parts=st.dictionaries(
        st.builds(TopicPartition, st.sampled_from("tu"), st.integers(0, 3)), answers, max_size=4
    ),
    throttle_ms=st.integers(0, 9_000),
    error_code=st.sampled_from([0, 0, 3]),
)
def test_a_fetch_response_is_the_same_in_each_version(
    version: int,
    parts: dict[TopicPartition, FetchAnswer],
    throttle_ms: int,
    error_code: int,
) -> None:
    """What a version does not have is unknown; the rest is as kafka-python writes it."""
    has_session, has_start, has_replica = version >= 7, version >= 5, version >= 11
    made = TheirFetchResponse
    topic, part = made.FetchableTopicResponse, made.FetchableTopicResponse.PartitionData
    topics = [
        topic(
            topic=name,
            partitions=[
                part(
                    partition_index=tp.partition,
                    error_code=each.error_code,
                    high_watermark=each.high_watermark,
                    last_stable_offset=each.last_stable_offset,
                    log_start_offset=each.log_start,
                    aborted_transactions=[
                        part.AbortedTransaction(producer_id=producer, first_offset=first)
                        for producer, first in each.aborted
                    ],
                    preferred_read_replica=-1
                    if each.preferred_replica is None
                    else each.preferred_replica,
                    records=bytes(each.records),
                )
                for tp, each in parts.items()
                if tp.topic == name
            ],
        )
        for name in sorted({tp.topic for tp in parts})
    ]
    response = made(
        version=version,
        throttle_time_ms=throttle_ms,
        error_code=error_code,
        session_id=0,
        responses=topics,
    )
    found = parse_fetch_response(memoryview(response.encode()), version)
    assert found.throttle_seconds == throttle_ms / 1000
    assert found.error_code == (error_code if has_session else 0)
    expected = {} if found.error_code else parts
    assert found.answers == {
        tp: FetchAnswer(
            each.error_code,
            each.high_watermark,
            each.last_stable_offset,
            each.aborted,
            each.records,
            each.preferred_replica if has_replica else None,
            each.log_start if has_start else -1,
        )
        for tp, each in expected.items()
    }
