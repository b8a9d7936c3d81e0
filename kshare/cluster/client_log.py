"""Log lines of librdkafka, made readable: each fault once in a while, and without its own names.

Guarantees: a message is logged, or the same one was logged less than five minutes ago. Nothing is
opened.
"""

import logging
import re
import time
from collections.abc import Callable
from typing import Final

__all__ = ["Once", "client_log"]

_AGAIN_SECONDS: Final = 300.0
_REMEMBERED_MAX: Final = 256
# FAIL [client#producer-1] [thrd:host:1/bootstrap]: host:1/bootstrap: text (after 3ms in state X)
_ORIGIN: Final = re.compile(r"^\w+ \[[^]]*\] \[thrd:[^]]*\]: ")
_DETAIL: Final = re.compile(r" \(after \d+ms in state .*\)$")


class Once(logging.Filter):
    """Lets the first of equal messages pass: a client that reconnects repeats itself for ever.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide if a record is logged; its text becomes one that a user can read."""
        text = _DETAIL.sub("", _ORIGIN.sub("", record.getMessage()))
        now = self._clock()
        last = self._last.get(text)
        if last is not None and now - last < _AGAIN_SECONDS:
            return False
        while len(self._last) >= _REMEMBERED_MAX:
            del self._last[next(iter(self._last))]
        self._last.pop(text, None)
        self._last[text] = now
        record.msg, record.args = f"Kafka client: {text}", ()
        return True


client_log: Final = logging.getLogger("kshare.client")
"""For librdkafka's handles: ``Producer(config, logger=client_log)``."""
client_log.addFilter(Once())
