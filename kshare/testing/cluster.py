"""An embedded Kafka cluster: librdkafka's mock brokers, which break on demand.

Law: what it serves over its sockets is Kafka's protocol, so any client may use it; nothing of it is
left when it is closed. Cost: starts in milliseconds, no JVM. A partition keeps at most 5 MiB of
record batches, as they were sent (compressed): older ones are dropped, so this is no place for big
data or for measurements. It makes topics by itself when a producer asks for one.

The functions are those of ``rdkafka_mock.h``, called in the library that confluent-kafka brings.
"""

import ctypes
import ctypes.util
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from time import sleep
from typing import Any, Final, Self

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from kshare.testing.records import RecordLike, produce

__all__ = ["FakeCluster"]

_PRODUCER: Final = 0  # RD_KAFKA_PRODUCER: the kind of handle does not matter to the brokers
_CONF_OK: Final = 0
_TEXT_BYTES: Final = 512
# A call that reaches the brokers' thread just when it is done with the last one does not wake it,
# and waits a second until it looks again.
_BREATH_SECONDS: Final = 0.0005

_API_KEYS: Final = {
    "Produce": 0,
    "Fetch": 1,
    "ListOffsets": 2,
    "Metadata": 3,
    "OffsetCommit": 8,
    "OffsetFetch": 9,
    "FindCoordinator": 10,
    "JoinGroup": 11,
    "Heartbeat": 12,
    "LeaveGroup": 13,
    "SyncGroup": 14,
    "SaslHandshake": 17,
    "ApiVersions": 18,
    "CreateTopics": 19,
    "DeleteTopics": 20,
    "DeleteRecords": 21,
    "InitProducerId": 22,
    "OffsetForLeaderEpoch": 23,
    "AddPartitionsToTxn": 24,
    "AddOffsetsToTxn": 25,
    "EndTxn": 26,
    "TxnOffsetCommit": 28,
    "DescribeConfigs": 32,
    "SaslAuthenticate": 36,
    "ConsumerGroupHeartbeat": 68,
    "GetTelemetrySubscriptions": 71,
    "PushTelemetry": 72,
    "DescribeTopicPartitions": 75,
}
_API_NAMES: Final = {key: name for name, key in _API_KEYS.items()}

_HANDLE = ctypes.c_void_p
_TEXT = ctypes.c_char_p
_INT = ctypes.c_int
_INT16, _INT32, _INT64 = ctypes.c_int16, ctypes.c_int32, ctypes.c_int64
_SIZE = ctypes.c_size_t

# name -> result, arguments; as in rdkafka.h and rdkafka_mock.h
_FUNCTIONS: Final[Mapping[str, tuple[Any, tuple[Any, ...]]]] = {
    "conf_new": (_HANDLE, ()),
    "conf_set": (_INT, (_HANDLE, _TEXT, _TEXT, _TEXT, _SIZE)),
    "conf_destroy": (None, (_HANDLE,)),
    "new": (_HANDLE, (_INT, _HANDLE, _TEXT, _SIZE)),
    "destroy": (None, (_HANDLE,)),
    "mock_cluster_new": (_HANDLE, (_HANDLE, _INT)),
    "mock_cluster_destroy": (None, (_HANDLE,)),
    "mock_cluster_bootstraps": (_TEXT, (_HANDLE,)),
    "mock_set_controller_id": (_INT, (_HANDLE, _INT32)),
    "mock_topic_create": (_INT, (_HANDLE, _TEXT, _INT, _INT)),
    "mock_topic_set_error": (None, (_HANDLE, _TEXT, _INT)),
    "mock_partition_set_leader": (_INT, (_HANDLE, _TEXT, _INT32, _INT32)),
    "mock_partition_delete_records": (_INT, (_HANDLE, _TEXT, _INT32, _INT64)),
    "mock_partition_set_follower": (_INT, (_HANDLE, _TEXT, _INT32, _INT32)),
    "mock_partition_set_follower_wmarks": (_INT, (_HANDLE, _TEXT, _INT32, _INT64, _INT64)),
    "mock_broker_set_down": (_INT, (_HANDLE, _INT32)),
    "mock_broker_set_up": (_INT, (_HANDLE, _INT32)),
    "mock_broker_set_rtt": (_INT, (_HANDLE, _INT32, _INT)),
    "mock_broker_set_rack": (_INT, (_HANDLE, _INT32, _TEXT)),
    "mock_push_request_errors_array": (None, (_HANDLE, _INT16, _SIZE, ctypes.POINTER(_INT))),
    "mock_clear_request_errors": (None, (_HANDLE, _INT16)),
    "mock_set_apiversion": (_INT, (_HANDLE, _INT16, _INT16, _INT16)),
    "mock_group_initial_rebalance_delay_ms": (None, (_HANDLE, _INT32)),
    "mock_start_request_tracking": (None, (_HANDLE,)),
    "mock_get_requests": (ctypes.POINTER(_HANDLE), (_HANDLE, ctypes.POINTER(_SIZE))),
    "mock_request_destroy_array": (None, (ctypes.POINTER(_HANDLE), _SIZE)),
    "mock_request_id": (_INT32, (_HANDLE,)),
    "mock_request_api_key": (_INT16, (_HANDLE,)),
}


class FakeCluster:
    """Brokers in this process, numbered from 1, on ports of this machine that the system chooses.

    ::

        with FakeCluster(topics={"orders": 2}) as cluster:
            cluster.produce("orders", [Record(b"key", b"value")])
            ...  # cluster.bootstrap_servers

    Args:
        brokers: Number of brokers.
        topics: Names and numbers of partitions of the first topics.

    Raises:
        ValueError: There must be at least one broker.
        RuntimeError: They cannot be started, or librdkafka lacks the mock cluster.
    """

    def __init__(self, brokers: int = 1, *, topics: Mapping[str, int] | None = None) -> None:
        if brokers < 1:
            raise ValueError(f"a cluster needs a broker; got {brokers}")
        self._brokers = brokers
        self._client: int | None = _new_client()
        self._handle: int | None = _library()["mock_cluster_new"](self._client, brokers)
        if not self._handle:
            self.close()
            raise RuntimeError("librdkafka did not start its mock cluster")
        self._do("mock_set_controller_id", 1)  # whom admin clients ask
        self._call("mock_group_initial_rebalance_delay_ms", 10)  # else groups begin after 3 s
        for name, partitions in (topics or {}).items():
            self.create_topic(name, partitions)

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of every broker, separated by commas."""
        servers: bytes = self._call("mock_cluster_bootstraps")
        return servers.decode()

    def close(self) -> None:
        """Stop the brokers and forget all records; a second time does nothing."""
        functions = _library()
        handle, self._handle = self._handle, None
        if handle:
            sleep(_BREATH_SECONDS)
            functions["mock_cluster_destroy"](handle)
        client, self._client = self._client, None
        if client:
            functions["destroy"](client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- topics and records ---------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, *, replication: int = 1) -> str:
        """Create a topic, and return its name."""
        self._do("mock_topic_create", name.encode(), partitions, min(replication, self._brokers))
        return name

    def produce(
        self,
        topic: str,
        records: Iterable[RecordLike],
        *,
        partition: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> int:
        """Produce records, and return how many; see :func:`kshare.testing.produce`."""
        # Idempotence costs half a second here, until a producer has its id.
        settings = {"enable.idempotence": False, "max.in.flight": 1} | dict(config or {})
        return produce(self.bootstrap_servers, topic, records, partition=partition, config=settings)

    def trim(self, topic: str, partition: int, before_offset: int) -> None:
        """Delete the records below an offset, as retention does."""
        self._do("mock_partition_delete_records", topic.encode(), partition, before_offset)

    # -- faults ---------------------------------------------------------------------------------

    def move_leader(self, topic: str, partition: int, broker: int | None) -> None:
        """Make a broker the leader of a partition; ``None``: it has none."""
        leader = -1 if broker is None else broker
        self._do("mock_partition_set_leader", topic.encode(), partition, leader)

    def set_follower(
        self,
        topic: str,
        partition: int,
        broker: int | None,
        lowest: int | None = None,
        high_watermark: int | None = None,
    ) -> None:
        """Let a broker serve a partition as a follower, which leaders name to clients with a rack.

        Args:
            topic: the topic.
            partition: the partition's number.
            broker: the follower; ``None``: there is none.
            lowest: the first offset that it holds; ``None``: the leader's.
            high_watermark: the offset after the last one that it knows of; ``None``: the leader's.
        """
        name = topic.encode()
        self._do("mock_partition_set_follower", name, partition, -1 if broker is None else broker)
        marks = [-1 if mark is None else mark for mark in (lowest, high_watermark)]
        self._do("mock_partition_set_follower_wmarks", name, partition, *marks)

    def stop_broker(self, broker: int) -> None:
        """Close a broker's connections, and accept no new ones. Its records stay."""
        self._do("mock_broker_set_down", broker)

    def start_broker(self, broker: int) -> None:
        """Let a stopped broker serve again."""
        self._do("mock_broker_set_up", broker)

    def delay(self, broker: int, milliseconds: int) -> None:
        """Delay each response of a broker."""
        self._do("mock_broker_set_rtt", broker, milliseconds)

    def set_rack(self, broker: int, rack: str) -> None:
        """Set a broker's rack."""
        self._do("mock_broker_set_rack", broker, rack.encode())

    def fail(self, api: str, errors: Sequence[str | int]) -> None:
        """Answer the next requests of a kind with errors, one each, in this order.

        Args:
            api: the request's name in Kafka's protocol: ``Fetch``, ``Metadata``, ...
            errors: names of ``confluent_kafka.KafkaError``, or codes of Kafka. ``_TRANSPORT``
                closes the connection instead of an answer; ``NO_ERROR`` answers normally.
        """
        codes = [_error_code(error) for error in errors]
        array = (_INT * len(codes))(*codes)
        self._call("mock_push_request_errors_array", _api_key(api), len(codes), array)

    def stop_failing(self, api: str) -> None:
        """Forget the errors of a kind of request that were not used yet."""
        self._call("mock_clear_request_errors", _api_key(api))

    def fail_topic(self, topic: str, error: str | int) -> None:
        """Let the metadata of a topic hold an error, until it is set to ``NO_ERROR``."""
        self._call("mock_topic_set_error", topic.encode(), _error_code(error))

    def limit_api_version(self, api: str, lowest: int, highest: int) -> None:
        """Let all brokers speak these versions of a request only; -1, -1: none at all."""
        self._do("mock_set_apiversion", _api_key(api), lowest, highest)

    # -- what clients did -----------------------------------------------------------------------

    def track_requests(self) -> None:
        """Count the requests from now on; starts again at each call."""
        self._call("mock_start_request_tracking")

    def requests(self) -> dict[tuple[int, str], int]:
        """Number of requests to each broker since :meth:`track_requests`, by broker and name."""
        functions, count = _library(), _SIZE()
        requests = self._call("mock_get_requests", ctypes.byref(count))
        counted: dict[tuple[int, str], int] = {}
        for i in range(count.value):
            key = functions["mock_request_api_key"](requests[i])
            kind = (functions["mock_request_id"](requests[i]), _API_NAMES.get(key, str(key)))
            counted[kind] = counted.get(kind, 0) + 1
        functions["mock_request_destroy_array"](requests, count)
        return counted

    def _call(self, name: str, *arguments: Any) -> Any:
        if not self._handle:
            raise RuntimeError("the cluster is closed")
        sleep(_BREATH_SECONDS)
        return _library()[name](self._handle, *arguments)

    def _do(self, name: str, *arguments: Any) -> None:
        """Call what returns an error code."""
        code = self._call(name, *arguments)
        if code:
            raise KafkaException(KafkaError(code))


@cache
def _library() -> Mapping[str, Any]:
    """The functions of librdkafka, by their names without ``rd_kafka_``."""
    library = ctypes.CDLL(_library_path())
    functions = {}
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, f"rd_kafka_{name}", None)
        if function is None:
            raise RuntimeError(
                f"this librdkafka has no rd_kafka_{name}: confluent-kafka is too old"
            )
        function.restype, function.argtypes = result, arguments
        functions[name] = function
    return functions


def _library_path() -> str:
    """The path of librdkafka: in the wheel, beside or below the package, or installed."""
    package = Path(confluent_kafka.__file__).parent
    for folder in (package.parent / "confluent_kafka.libs", package / ".dylibs", package):
        for file in sorted(folder.glob("*rdkafka*")):
            if {".so", ".dylib", ".dll"} & set(file.suffixes) and "++" not in file.name:
                return str(file)
    installed = ctypes.util.find_library("rdkafka")
    if installed is None:
        raise RuntimeError("librdkafka was not found: install the wheel of confluent-kafka")
    return installed


def _new_client() -> int:
    """A handle that the brokers live in."""
    functions, text = _library(), ctypes.create_string_buffer(_TEXT_BYTES)
    conf = functions["conf_new"]()
    # That a broker goes down is what the tests do on purpose.
    if functions["conf_set"](conf, b"log_level", b"0", text, _TEXT_BYTES) != _CONF_OK:
        functions["conf_destroy"](conf)
        raise RuntimeError(f"librdkafka refused its configuration: {text.value.decode()}")
    client: int | None = functions["new"](_PRODUCER, conf, text, _TEXT_BYTES)
    if not client:
        functions["conf_destroy"](conf)
        raise RuntimeError(f"librdkafka did not start: {text.value.decode()}")
    return client


def _api_key(api: str) -> int:
    if api not in _API_KEYS:
        raise ValueError(f"no such request: {api!r}; known: {', '.join(_API_KEYS)}")
    return _API_KEYS[api]


def _error_code(error: str | int) -> int:
    code = error if isinstance(error, int) else getattr(KafkaError, error, None)
    if not isinstance(code, int):
        raise ValueError(  # noqa: TRY004 - a name that is not one
            f"no such error of Kafka: {error!r}; wanted a name of KafkaError"
        )
    return code
