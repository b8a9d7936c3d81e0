"""What kshare uses of kafka-python: message classes, SASL mechanisms, its partitioner.

This is the only door to it. Importing it reads Kafka's schemas in a way that Python 3.11 and 3.12
warn of; where warnings are errors (``python -W error``), kshare is imported all the same.

Cost: 0.3 s, so modules that rarely need it import it late.
"""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.errors import for_code
    from kafka.net.sasl import get_sasl_mechanism
    from kafka.net.sasl.oauth import AbstractTokenProvider
    from kafka.partitioner.default import murmur2
    from kafka.protocol.admin import DescribeProducersRequest, ListTransactionsRequest
    from kafka.protocol.admin.groups import DescribeGroupsRequest
    from kafka.protocol.api_header import ResponseClassRegistry
    from kafka.protocol.consumer import (
        HeartbeatRequest,
        JoinGroupRequest,
        LeaveGroupRequest,
        OffsetCommitRequest,
        OffsetFetchRequest,
        SyncGroupRequest,
    )
    from kafka.protocol.consumer.offsets import ListOffsetsRequest
    from kafka.protocol.metadata import (
        ApiVersionsRequest,
        FindCoordinatorRequest,
        MetadataRequest,
    )
    from kafka.protocol.producer import (
        AddPartitionsToTxnRequest,
        EndTxnRequest,
        InitProducerIdRequest,
    )
    from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

__all__ = [
    "AbstractTokenProvider",
    "AddPartitionsToTxnRequest",
    "ApiVersionsRequest",
    "DescribeGroupsRequest",
    "DescribeProducersRequest",
    "EndTxnRequest",
    "FindCoordinatorRequest",
    "HeartbeatRequest",
    "InitProducerIdRequest",
    "JoinGroupRequest",
    "LeaveGroupRequest",
    "ListOffsetsRequest",
    "ListTransactionsRequest",
    "MetadataRequest",
    "OffsetCommitRequest",
    "OffsetFetchRequest",
    "ResponseClassRegistry",
    "SaslAuthenticateRequest",
    "SaslHandshakeRequest",
    "SyncGroupRequest",
    "for_code",
    "get_sasl_mechanism",
    "murmur2",
]
