"""What ends a wait for sockets."""

import math
import os
import select
import socket
import threading
from contextlib import suppress

import pytest

from kshare.kafka.protocol.background import Waker
from tests.support.clock import WAIT_S


def test_before_it_is_open_and_after_it_is_closed_it_wakes_nobody() -> None:
    waker = Waker()
    waker.wake()
    assert waker.wait(60) == []
    waker.open().close()
    waker.close()
    waker.wake()
    assert waker.wait(60) == []


def test_one_that_nobody_closes_leaves_no_descriptors() -> None:
    waker = Waker().open()
    reading = os.dup(waker._reading)
    del waker
    try:
        assert os.read(reading, 1) == b""  # nobody can write any more
    finally:
        os.close(reading)


def test_a_wake_up_ends_the_wait_or_the_next_one() -> None:
    waker = Waker().open()
    waker.wake()
    waker.wake()
    assert waker.wait(60) == []
    threading.Timer(0.1, waker.wake).start()
    assert waker.wait(60) == []
    assert waker.wait(0) == []
    waker.close()


def test_it_says_if_it_was_woken() -> None:
    waker, said = Waker().open(), []
    for wakes in (True, False, True):
        if wakes:
            waker.wake()
        waker.wait(0)
        said.append(waker.has_woken)
    assert said == [True, False, True]
    waker.close()


@pytest.mark.parametrize("seconds", [3_000_000, 1e18, math.inf])
def test_any_time_may_be_waited_for(seconds: float) -> None:
    waker = Waker().open()
    waker.wake()
    assert waker.wait(seconds) == []
    waker.close()


def test_it_says_which_sockets_can_be_read() -> None:
    waker = Waker().open()
    (near, far), (other, unread) = socket.socketpair(), socket.socketpair()
    far.send(b"x")
    reading = dict.fromkeys([other.fileno(), near.fileno()], select.POLLIN)
    assert waker.wait(60, reading) == [near.fileno()]
    for each in (near, far, other, unread):
        each.close()
    waker.close()


def test_it_says_which_sockets_have_room() -> None:
    waker = Waker().open()
    near, far = socket.socketpair()
    near.setblocking(False)
    assert waker.wait(60, {near.fileno(): select.POLLOUT}) == [near.fileno()]
    with suppress(BlockingIOError):
        while near.send(bytes(1 << 20)):
            pass
    assert waker.wait(0, {near.fileno(): select.POLLOUT}) == []
    near.close()
    far.close()
    waker.close()


def test_what_is_closed_is_not_written_to() -> None:
    """Its number may be another file's by then."""
    waker = Waker().open()
    waker.close()
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    for _ in range(3):
        waker.wake()
    os.write(writing, b"own")
    assert os.read(reading, 100) == b"own"
    os.close(reading)
    os.close(writing)


def test_many_wake_ups_are_one_and_none_is_lost() -> None:
    waker = Waker().open()
    for _ in range(100_000):  # more than a pipe holds
        waker.wake()
    assert waker.wait(60) == []
    for _ in range(3):
        waker.wake()
        assert waker.wait(60) == []
    waker.close()
    waker.open()
    waker.wake()
    assert waker.wait(60) == []
    waker.close()


def test_nobody_waits_for_who_cannot_go_on() -> None:
    """As a signal handler runs amid a wake-up, and waits for the thread that waits."""
    waker = Waker().open()
    waker.wake()
    found = list[list[int]]()

    def others() -> None:
        found.extend(waker.wait(60) for _ in range(3))
        waker.wake()
        waker.close()

    with waker._lock:
        thread = threading.Thread(target=others)
        thread.start()
        thread.join(WAIT_S)
        assert found == [[], [], []]
        assert not thread.is_alive()
    waker.wake()  # when it leaves, it closes
    assert waker._reading == -1
    assert waker.wait(60) == []
