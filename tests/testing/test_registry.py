"""The registry of the test kit, by confluent-kafka's own client and serializers."""

import base64
import json
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2

from kshare.testing import FakeRegistry

USER = json.dumps({"type": "record", "name": "User", "fields": [{"name": "id", "type": "long"}]})
NEWER = json.dumps(
    {
        "type": "record",
        "name": "User",
        "fields": [{"name": "id", "type": "long"}, {"name": "n", "type": "int", "default": 0}],
    }
)


def client(registry: FakeRegistry, **more: Any) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url, "max.retries": 0, "timeout": 60, **more})


def test_confluents_serializers_work_with_it() -> None:
    with FakeRegistry(first_id=100_001) as registry:
        asking = client(registry)
        context = SerializationContext("users", MessageField.VALUE)
        data = AvroSerializer(asking, USER)({"id": 7}, context)
        assert data[:5] == b"\0" + (100_001).to_bytes(4, "big")
        assert AvroDeserializer(asking, NEWER)(data, context) == {"id": 7, "n": 0}
        assert asking.get_subjects() == ["users-value"]


def test_versions_of_subjects() -> None:
    with FakeRegistry() as registry:
        assert registry.register("a", USER) == 1
        assert registry.register("a", NEWER) == 2
        assert registry.register("a", f" {USER} ") == 1
        assert registry.register("b", NEWER) == 2
        assert registry.register("b", '{"type": "object"}', "JSON") == 3
        asking = client(registry)
        assert asking.get_versions("a") == [1, 2]
        newest = asking.get_latest_version("a")
        assert (newest.schema_id, newest.version, newest.schema.schema_str) == (2, 2, NEWER)
        assert asking.get_version("a", 1).schema_id == 1
        assert asking.get_schema(3).schema_type == "JSON"
        assert asking.lookup_schema("b", Schema(NEWER, "AVRO")).version == 1
        assert asking.register_schema("c", Schema(USER, "AVRO")) == 1
        assert {each.subject for each in asking.get_schema_versions(1)} == {"a", "c"}
        assert asking.delete_subject("c") == [1]
        assert asking.get_schema_types() == ["JSON", "PROTOBUF", "AVRO"]


PROTO = 'syntax = "proto3"; package shop; message Order { optional string user = 1; }'
FILE = descriptor_pb2.FileDescriptorProto(name="o.proto", package="shop", syntax="proto3")
ORDER = FILE.message_type.add(name="Order")
ORDER.field.add(
    name="user", number=1, type=9, label=1, proto3_optional=True, oneof_index=0, json_name="user"
)
ORDER.oneof_decl.add(name="_user")


def test_protobuf_is_taken_and_given_in_both_forms() -> None:
    descriptor = base64.b64encode(FILE.SerializeToString()).decode()
    with FakeRegistry() as registry:
        assert registry.register("a", descriptor, "PROTOBUF") == 1
        assert registry.register("b", PROTO, "PROTOBUF") == 1
        text = client(registry).get_schema(1).schema_str or ""
        assert text.split() == PROTO.replace("{", "{\n").split()
        guid = client(registry).get_latest_version("a").guid or ""
        for asked in (
            client(registry).get_schema(1, fmt="serialized"),
            client(registry).get_version("b", 1, fmt="serialized").schema,
            client(registry).get_schema_by_guid(guid, fmt="serialized"),
        ):
            found = descriptor_pb2.FileDescriptorProto.FromString(
                base64.b64decode(asked.schema_str or "")
            )
            assert found.message_type[0].field[0].name == "user"
            assert found.message_type[0].field[0].proto3_optional
        registry.serialized = False
        assert client(registry).get_schema(1, fmt="serialized").schema_str == text


def test_references_are_kept() -> None:
    with FakeRegistry() as registry:
        registry.register("user", USER)
        asking = client(registry)
        refers = Schema(
            '{"type": "array", "items": "User"}', "AVRO", [SchemaReference("User", "user", 1)]
        )
        number = asking.register_schema("users", refers)
        (reference,) = client(registry).get_schema(number).references or []
        assert (reference.name, reference.subject, reference.version) == ("User", "user", 1)


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lambda asking: asking.get_latest_version("none"), 40401),
        (lambda asking: asking.get_version("a", 9), 40402),
        (lambda asking: asking.get_schema(9), 40403),
        (lambda asking: asking.lookup_schema("a", Schema(NEWER, "AVRO")), 40403),
        (lambda asking: asking.register_schema("a", Schema("{", "AVRO")), 42201),
        (lambda asking: asking.register_schema("a", Schema("message {", "PROTOBUF")), 42201),
        (lambda asking: asking.get_schema_by_guid("9"), 40403),
        (lambda asking: asking.get_mode("a"), 404),
    ],
)
def test_what_is_not_there_has_confluents_error_codes(ask: Any, code: int) -> None:
    with FakeRegistry() as registry:
        registry.register("a", USER)
        with pytest.raises(SchemaRegistryError) as raised:
            ask(client(registry))
        assert raised.value.error_code == code


def test_logins_and_faults_and_what_was_asked() -> None:
    with FakeRegistry(user_info="me:secret") as registry:
        registry.register("a b/c", USER)
        with pytest.raises(SchemaRegistryError, match="Unauthorized"):
            client(registry).get_schema(1)
        asking = client(registry, **{"basic.auth.user.info": "me:secret"})
        assert asking.get_version("a b/c", 1).schema_id == 1
        registry.fail([503])
        with pytest.raises(SchemaRegistryError) as raised:
            asking.get_schema(1)
        assert raised.value.http_status_code == 503
        assert asking.get_schema(1).schema_str == USER
        assert registry.requests[1] == "GET /subjects/a b/c/versions/1"


def test_one_that_is_stopped_answers_nobody_and_comes_back_at_its_address() -> None:
    with FakeRegistry() as registry:
        url = registry.url
        number = registry.register("a", USER)
        asking = client(registry)
        assert asking.get_version("a", 1).schema_id == number
        registry.stop()
        registry.stop()
        with pytest.raises(Exception, match="Connection refused"):
            asking.get_version("a", 2)
        registry.start()
        registry.start()
        assert registry.url == url
        assert client(registry).get_schema(number).schema_str == USER
