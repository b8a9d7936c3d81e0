"""kshare's warnings in the form of Spark's log lines."""

import logging
from typing import Final

__all__ = ["show_log"]

_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_TIME: Final = "%y/%m/%d %H:%M:%S"


def show_log() -> None:
    """Log warnings to standard error with time, level and name, unless logging is set up already.

    Spark's Python processes have no handler. Python would then print the bare message, and a reader
    of Spark's log could not tell where it comes from.
    """
    logger = logging.getLogger("kshare")
    if logging.getLogger().handlers or logger.handlers:
        return
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter(_FORMAT, _TIME))
    logger.addHandler(handler)
