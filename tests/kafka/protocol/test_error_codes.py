"""The one table of Kafka's error codes."""

import subprocess
import sys

import pytest
from kafka.errors import for_code

from kshare.group.protocol.membership.requests import Code
from kshare.kafka.protocol import error_codes
from kshare.kafka.protocol.error_codes import ErrorCode, Kind

# Java's consumer retries these too, or a fetch does; kafka-python does not call them retriable.
ALSO_RETRIABLE = {
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.BROKER_NOT_AVAILABLE,
}
RENAMED = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "UNKNOWN",
    ErrorCode.NONE: "NO_ERROR",
    ErrorCode.MESSAGE_TOO_LARGE: "MESSAGE_SIZE_TOO_LARGE",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "INVALID_REPLICATION_ASSIGNMENT",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "NOT_LEADER_FOR_PARTITION",
}


@pytest.mark.parametrize("code", ErrorCode)
def test_the_table_agrees_with_kafka_python(code: ErrorCode) -> None:
    theirs = for_code(int(code))
    assert theirs.message == RENAMED.get(code, code.name)
    assert error_codes.is_retriable(code) == (theirs.retriable or code in ALSO_RETRIABLE)
    assert error_codes.name(code) == code.name


@pytest.mark.parametrize(("code", "name"), [(24, "INVALID_GROUP_ID"), (999, "error 999")])
def test_the_name_of_a_code_that_is_not_listed(code: int, name: str) -> None:
    assert error_codes.name(code) == name


@pytest.mark.parametrize("code", range(-2, 140))
def test_a_code_is_success_or_retriable_or_permanent(code: int) -> None:
    states = [code == 0, error_codes.is_retriable(code), error_codes.is_permanent(code)]
    assert states.count(True) == 1


def test_codes_of_which_kafka_python_says_more_than_retriable() -> None:
    """A kind for each of its classes of errors: none is missing from the table."""
    listed = {int(code) for code in ErrorCode if code.kind is Kind.AUTHORIZATION}
    theirs = {
        code for code in range(140) if for_code(code).__mro__[1].__name__ == "AuthorizationError"
    }
    assert listed == theirs - {65}  # DELEGATION_TOKEN_AUTHORIZATION_FAILED: no request of ours


def test_a_number_that_is_not_listed_is_permanent() -> None:
    assert error_codes.kind(999) is Kind.PERMANENT
    assert error_codes.kind(ErrorCode.NOT_COORDINATOR) is error_codes.kind(16) is Kind.TRANSIENT


def test_the_table_does_not_import_kafka_python() -> None:
    """Planners use it, and kafka-python takes 0.3 s to import."""
    code = "import sys, kshare.kafka.protocol.error_codes; sys.exit('kafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_codes_of_the_group_protocol_are_those_of_the_table() -> None:
    assert {code.name: code.value for code in Code} == {
        code.name: int(code) for code in ErrorCode if code.name in Code.__members__
    }
