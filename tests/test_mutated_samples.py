"""Each decoder with mutated samples of what is really written: a value, or its own error.

docs/design/decoders.md lists the decoders. Those of a group's log and of members' data are mutated
in tests/group/protocol, record batches in tests/read/decode.
"""

import hashlib
import hmac
import json
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.bounded_json import DAMAGE
from kshare.core.checkpoint import BatchOffsets, decode, decode_stable
from kshare.errors import CheckpointError, CheckpointVersionError, KafkaError
from kshare.group.log.retry_log import Reason
from kshare.kafka.compacted_topic import Row
from kshare.kafka.parked_keys import ParkedKeys
from kshare.kafka.policies import Policies
from kshare.kafka.protocol.api_versions import parse_api_versions
from kshare.kafka.protocol.fetch import parse_fetch_response
from kshare.kafka.protocol.frames import ProtocolError
from kshare.processing import Processor
from kshare.query.feedback import messages
from kshare.query.produce import ledger_state
from kshare.query.produce.ledger_state import Entry, State
from tests.core.test_checkpoint import everything
from tests.group.log.test_retry_log import log_of
from tests.processing.engines import records_of
from tests.support.effort import examples
from tests.support.mutation import mutated

KEY = b"k" * 32
CHECKPOINTS = [
    b'{"t":{"0":100,"1":7},"u":{"0":3}}',
    json.dumps(everything()).encode(),
]
ROWS = [
    b'{"key":"61","topic":"t"}',
    b'{"by":"b","when":"2026-01-01T00:00:00+00:00","why":"y"}',
    b'{"policy":"accept.range.fetch","topic":"orders"}',
    b'{"by":"b","value":"true","when":"w","why":"y"}',
]
LEDGER = [
    ledger_state.encode(State(7, "r2", ("r1", "r2"), (Entry(0, 1, 4000, 2, 10),), topic="t")),
    ledger_state.encode(State(7, "r2", ("r1", "r2"), ended=True, prefix="team")),
]
REPORTS = [
    b'{"kind":"done","batch":"b","end":1,"held":true,"keys":[["aw==",1.0]],"records":2,"sample":[1],"task":0}',
    b'{"batch":"b","executor":"1","kind":"hello","slots":4,"task":0}',
]
FETCHED = [
    bytes.fromhex(
        "00000000 0000 00000000 00000001 0001 74 00000001 00000000 0000"
        "0000000000000064 0000000000000064 0000000000000000 00000001"
        "0000000000000007 0000000000000005 ffffffff 00000003 010203"
    )
]
VERSIONS = [struct.pack(">hB", 0, 3) + struct.pack(">hhhB", 1, 4, 17, 0) * 2 + bytes(5)]


@examples(300)
@given(mutated(CHECKPOINTS))
def test_a_checkpoint(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for read in (decode, decode_stable):
        with suppress(CheckpointError, CheckpointVersionError):
            assert isinstance(read(text), BatchOffsets)


@examples(300)
@given(mutated(LEDGER))
def test_the_ledger(data: bytes) -> None:
    with suppress(KafkaError, CheckpointVersionError):
        found = ledger_state.decode(data)
        assert found.ended or found.entries
        assert found.runs[-1] == found.run
        ledger_state.encode(found)


@examples(300)
@given(mutated(ROWS), st.sampled_from([ParkedKeys, Policies]))
def test_parked_keys_and_policies(data: bytes, table: Any) -> None:
    decoders: tuple[Callable[[bytes], Any], ...] = (table.decode_key, table.decode_value)
    for read in decoders:
        with suppress(*DAMAGE):
            found = read(data)
            fields = (
                found if isinstance(found, tuple) else [getattr(found, n) for n in found.__slots__]
            )
            "".join(each for each in fields if isinstance(each, str)).encode()


@examples(300)
@given(mutated(REPORTS))
def test_a_report_of_a_task_that_is_signed(data: bytes) -> None:
    mac = hmac.new(KEY, data, hashlib.sha256).hexdigest().encode()
    with suppress(ValueError):
        messages.decode(KEY, mac + b" " + data)


@examples(300)
@given(mutated(FETCHED))
def test_an_answer_to_fetch(data: bytes) -> None:
    with suppress(ProtocolError):
        found = parse_fetch_response(memoryview(data), 11)
        assert sum(len(each.records) for each in found.answers.values()) <= len(data)


@examples(300)
@given(mutated(VERSIONS))
def test_an_answer_to_api_versions(data: bytes) -> None:
    with suppress(ValueError):
        parse_api_versions(memoryview(data))


def retry_rows() -> list[Row]:
    log = list[Row]()
    first, second = records_of(Processor(print), [b"a", b"b"])
    first.failures, first.since, first.due = 3, 1000.5, 1030.25
    second.failures, second.since = 2, 1001.5
    writer = log_of(log, "billing")
    writer.remember(first)
    writer.begin_sequence(second, Reason("builtins.OSError", "no"))
    writer.close()
    return log


RETRIES = retry_rows()


@examples(300)
@given(mutated([row.key or b"" for row in RETRIES]), mutated([row.value or b"" for row in RETRIES]))
def test_the_retry_log(key: bytes, value: bytes) -> None:
    """What was there before stays, whatever comes behind it."""
    for row in (Row(0, 9, key, RETRIES[0].value), Row(0, 9, RETRIES[0].key, value)):
        known = log_of([*RETRIES, row], "billing").read()
        assert len(known.attempts) + len(known.sequences) >= len(RETRIES) - 1


@pytest.mark.parametrize(
    ("samples", "read"),
    [
        (CHECKPOINTS, lambda data: decode(data.decode())),
        (LEDGER, ledger_state.decode),
        (FETCHED, lambda data: parse_fetch_response(memoryview(data), 11).answers),
        (VERSIONS, lambda data: parse_api_versions(memoryview(data))[1]),
    ],
)
def test_the_samples_are_read(samples: list[bytes], read: Callable[[bytes], Any]) -> None:
    """Otherwise the mutations would show nothing."""
    assert all(read(sample) for sample in samples)
