"""Receiving what comes, and comes again."""

import time
from collections.abc import Callable

from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.message import Message
from tests.support.groups import SECONDS

RECORDS = 40
Make = Callable[..., KeySharedConsumer]


def received(consumer: KeySharedConsumer, count: int) -> list[Message]:
    found = list[Message]()
    deadline = time.monotonic() + SECONDS
    while len(found) < count and time.monotonic() < deadline:
        found += consumer.consume(count - len(found), 0.1)
    return found
