"""The look at bootstrap servers as something starts: who refuses, who may be listening."""

import logging
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from kshare.errors import KafkaError
from kshare.kafka.listening import check_listening
from kshare.options import KafkaConfig
from tests.support.clock import Clock

ONE = KafkaConfig(bootstrap_servers=(("a", 1),))
TWO = replace(ONE, bootstrap_servers=(("a", 1), ("b", 2)))
REFUSED = ConnectionRefusedError(111, "Connection refused")
NAMELESS = socket.gaierror(-2, "Name or service not known")


class Servers:
    """Answers the connections to each host as a test says; ``asked`` is their number."""

    def __init__(self, **faults: OSError | None) -> None:
        self.faults = faults
        self.asked = 0

    def __call__(self, address: tuple[str, int], seconds: float) -> Any:
        self.asked += 1
        fault = self.faults[address[0]]
        if fault is not None:
            raise fault
        return nullcontext()


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        (Servers(a=REFUSED, b=REFUSED), "a:1: Connection refused; b:2: Connection refused"),
        (
            Servers(a=NAMELESS, b=REFUSED),
            "a:1: Name or service not known; b:2: Connection refused",
        ),
    ],
)
def test_none_listens(servers: Servers, said: str) -> None:
    clock = Clock()
    with pytest.raises(KafkaError) as raised:
        check_listening(TWO, 10.0, clock=clock, connect=servers)
    assert str(raised.value) == f"{said} (kafka.bootstrap.servers; at each look within 10 s)"
    assert raised.value.broker == "a:1, b:2"
    assert sum(clock.slept) == pytest.approx(10)
    assert servers.asked == 2 * (len(clock.slept) + 1)  # the last look is at the end


@pytest.mark.parametrize("fault", [None, TimeoutError("timed out"), OSError(113, "No route")])
def test_one_that_may_be_listening_is_enough(fault: OSError | None) -> None:
    clock = Clock()
    check_listening(TWO, 10.0, clock=clock, connect=Servers(a=REFUSED, b=fault))
    assert clock.slept == []


def test_a_broker_that_starts_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    """As one that restarts: it is waited for, and after 2 s that is said once."""
    caplog.set_level(logging.WARNING)
    servers = Servers(a=REFUSED)

    def start(number: int) -> None:
        if clock.now >= 1009:
            servers.faults["a"] = None

    clock = Clock(on_sleep=start)
    check_listening(ONE, 10.0, clock=clock, connect=servers)
    assert 9 <= sum(clock.slept) <= 10
    (said,) = caplog.messages
    assert said.startswith("a:1: Connection refused; looking again for ")


def test_no_longer_than_the_options_allow() -> None:
    clock = Clock()
    with pytest.raises(KafkaError, match=r"within 1\.5 s"):
        check_listening(
            replace(ONE, api_timeout_ms=1_500), 10.0, clock=clock, connect=Servers(a=REFUSED)
        )
    assert sum(clock.slept) == pytest.approx(1.5)


@contextmanager
def listener() -> Iterator[tuple[str, int]]:
    with closing(socket.create_server(("127.0.0.1", 0))) as opened:
        yield opened.getsockname()[:2]


def test_ports_of_this_machine() -> None:
    with listener() as address:
        check_listening(replace(ONE, bootstrap_servers=(("localhost", 1), address)), 0.1)
    with pytest.raises(KafkaError, match=r"127\.0\.0\.1:1: Connection refused"):
        check_listening(replace(ONE, bootstrap_servers=(("127.0.0.1", 1),)), 0.1)
    with pytest.raises(KafkaError, match=r"nosuch\.invalid:9092: .*(name|Name|resolution)"):
        check_listening(replace(ONE, bootstrap_servers=(("nosuch.invalid", 9092),)), 0.1)
