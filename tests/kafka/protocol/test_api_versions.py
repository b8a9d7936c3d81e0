"""Which versions a broker speaks: as kafka-python reads it, also where Python has no asserts."""

import ast
import inspect
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.metadata import ApiVersionsResponse

from kshare import kafka_python
from kshare.kafka.protocol.api_versions import parse_api_versions

SHORTS = st.integers(-(2**15), 2**15 - 1)
TEXTS = st.text("abc.", max_size=200)
WITHOUT_EFFECT = {"all", "any", "isinstance", "len", "startswith", "type", "values"}


def encoded(apis: list[tuple[int, int, int]], **fields: Any) -> bytes:
    keys = [
        ApiVersionsResponse.ApiVersion(api_key=k, min_version=a, max_version=b) for k, a, b in apis
    ]
    return bytes(ApiVersionsResponse(version=3, api_keys=keys, **fields).encode(version=3))


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """What brokers answer, with the features that newer ones speak of, or without."""
    fields: dict[str, Any] = {"throttle_time_ms": draw(SHORTS)}
    if draw(st.booleans()):
        kind = ApiVersionsResponse.SupportedFeatureKey
        names = draw(st.lists(TEXTS, max_size=5))
        fields["supported_features"] = [kind(name=n, min_version=0, max_version=1) for n in names]
    if draw(st.booleans()):
        final = ApiVersionsResponse.FinalizedFeatureKey
        names = draw(st.lists(TEXTS, max_size=5))
        fields["finalized_features"] = [
            final(name=name, max_version_level=1, min_version_level=0) for name in names
        ]
        fields["finalized_features_epoch"] = draw(st.integers(0, 2**40))
    apis = st.lists(st.tuples(SHORTS, SHORTS, SHORTS), max_size=200, unique_by=lambda api: api[0])
    return encoded(draw(apis), **fields)


@given(answers())
def test_it_is_read_as_kafka_python_reads_it(body: bytes) -> None:
    response = ApiVersionsResponse.decode(body, version=3)
    code, versions = parse_api_versions(memoryview(body))
    assert code == response.error_code
    assert versions == {a.api_key: (a.min_version, a.max_version) for a in response.api_keys}


@given(answers(), st.data())
def test_what_is_cut_short_is_an_error(body: bytes, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(ValueError, match="too few"):
        parse_api_versions(memoryview(body)[:length])


def test_an_error_comes_with_its_code() -> None:
    """Whichever version the rest of the answer has."""
    for body in (encoded([(3, 0, 9)], error_code=42), b"\0\x2a\0\0\0\0", b"\0\x2a"):
        assert parse_api_versions(memoryview(body)) == (42, {})


def test_a_number_without_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="five bytes"):
        parse_api_versions(memoryview(b"\0\0" + b"\xff" * 20))


# -- python -O -----------------------------------------------------------------------------------

CONNECT = """
import sys
from kshare.options import parse_options
from kshare.kafka.protocol.connection import Connection
from kshare.kafka_python import MetadataRequest
assert False
options = {"kafka.bootstrap.servers": sys.argv[1], "subscribe": "t"}
kafka = parse_options(options, streaming=True).options.kafka
host, port = sys.argv[1].split(":")
print(Connection(host, int(port), kafka).version(MetadataRequest, 4, 9))
"""


@pytest.fixture
def broker() -> Iterator[str]:
    """A broker that speaks of its features, as real ones do and the mock cluster does not."""
    feature = ApiVersionsResponse.SupportedFeatureKey(name="f", min_version=0, max_version=1)
    body = encoded([(3, 0, 8)], supported_features=[feature, feature])
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
                request = connection.recv(size, socket.MSG_WAITALL)
                connection.sendall(struct.pack(">i", 4 + len(body)) + request[4:8] + body)
                connection.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize("level", ["1", "2"])
def test_a_connection_without_asserts(broker: str, level: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, broker],
        env={**os.environ, "PYTHONOPTIMIZE": level},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "8\n"), done.stderr


def effects(folder: Path) -> list[str]:
    """The asserts of a folder's modules that call more than what has no effect."""
    found = []
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            for test in [node.test] if isinstance(node, ast.Assert) else []:
                for call in ast.walk(test):
                    name = getattr(call, "func", None)
                    called = getattr(name, "id", getattr(name, "attr", ""))
                    if isinstance(call, ast.NamedExpr | ast.Await | ast.Yield) or (
                        isinstance(call, ast.Call) and called not in WITHOUT_EFFECT
                    ):
                        found.append(f"{file.relative_to(folder)}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize("package", ["kshare", "spark_plugin"])
def test_no_assert_of_ours_does_anything(package: str) -> None:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    assert effects(Path(spec.origin).parent) == []


def test_the_only_assert_of_kafka_python_that_does_something_is_not_reached() -> None:
    """It reads what lies behind a struct in a tagged field. No response that is decoded has one."""
    spec = find_spec("kafka")
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent
    assert effects(home / "protocol" / "schemas") == [
        "fields/codecs/tagged_fields.py: assert UnsignedVarInt32.decode(data) == 0"
    ]
    for rest in ("net/sasl", "partitioner"):
        assert effects(home / rest) == []
    registry = kafka_python.ResponseClassRegistry._response_class_registry
    requests: list[Any] = [c for c in vars(kafka_python).values() if inspect.isclass(c)]
    asked = {c.name: registry[c.API_KEY] for c in requests if c.__name__.endswith("Request")}
    first = {
        name: min(versions)
        for name, response in asked.items()
        if (versions := [v for v in range(response.max_version + 1) if reaches(response, v)])
    }
    assert first == {"ApiVersionsRequest": 3}  # which is read here, as those of Fetch are


def reaches(response: Any, version: int) -> bool:
    """Whether a response of a version has a tagged field that is a struct, or some."""

    def tagged(struct_: Any) -> bool:
        return any(
            (field.tagged_field_q(version) and bool(getattr(field, "_fields", None)))
            or tagged(field)
            for field in getattr(struct_, "_fields", None) or []
            if field.for_version_q(version)
        )

    return tagged(response._struct)
