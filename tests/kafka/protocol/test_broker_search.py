"""Which brokers are asked for what any of them can say, and whose fault a refusal is."""

import pytest

from kshare.errors import AuthenticationError, AuthorizationError, KafkaError
from kshare.kafka.protocol.brokers import BrokerSearch

ONE, TWO, THREE, FOUR, FIVE = (
    ("one", 1),
    ("two", 2),
    ("three", 3),
    ("four", 4),
    ("five", 5),
)


def test_bootstrap_servers_are_asked_first_then_some_others() -> None:
    search = BrokerSearch([TWO, ONE], [FIVE, THREE, FOUR])
    assert list(search) == [TWO, ONE, FIVE, THREE]
    assert search.is_beyond_bootstrap


def test_without_metadata_bootstrap_servers_are_asked_alone() -> None:
    search = BrokerSearch([TWO, ONE], [])
    assert list(search) == [TWO, ONE]
    assert not search.is_beyond_bootstrap


def test_who_is_left_alone_for_longest_is_asked_last() -> None:
    paused = {ONE: 9.0, THREE: 5.0, FOUR: 3.0}
    search = BrokerSearch(
        [ONE, TWO], [THREE, FOUR, FIVE], paused_until=lambda each: paused.get(each, 0.0)
    )
    assert list(search) == [TWO, FIVE, FOUR, ONE]  # of others, those that may answer soonest


@pytest.mark.parametrize("kind", [AuthenticationError, AuthorizationError])
def test_a_login_that_a_bootstrap_server_refuses_is_wrong(kind: type[KafkaError]) -> None:
    search = BrokerSearch([ONE], [TWO])
    error = kind("wrong password")
    with pytest.raises(kind) as caught:
        search.failed(ONE, error)
    assert caught.value is error
    assert search.faults == []


@pytest.mark.parametrize("kind", [AuthenticationError, AuthorizationError])
def test_a_login_that_another_broker_refuses_is_its_own_fault(kind: type[KafkaError]) -> None:
    search = BrokerSearch([ONE], [TWO])
    search.failed(TWO, kind("no such user"))
    ((address, fault),) = search.faults
    assert address == TWO
    assert type(fault) is ConnectionError  # so that what failed is tried again
    assert str(fault) == "no such user"


@pytest.mark.parametrize("address", [ONE, TWO])
def test_any_other_fault_is_one_of_its_broker(address: tuple[str, int]) -> None:
    search = BrokerSearch([ONE], [TWO])
    error = KafkaError("too old")
    search.failed(address, error)
    assert search.faults == [(address, error)]


def test_it_says_what_ailed_each_broker() -> None:
    search = BrokerSearch([ONE], [TWO, THREE])
    search.failed(ONE, TimeoutError())
    search.failed(TWO, AuthenticationError("no such user"))
    assert str(search) == "one:1: TimeoutError; two:2: no such user"
