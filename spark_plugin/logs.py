"""Warnings of kshare between the lines of Spark's log, in its form.

Law: whoever has set up Python's logging has the last word. Cost: none.
"""

import logging
from typing import Final

__all__ = ["show_log"]

_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_TIME: Final = "%y/%m/%d %H:%M:%S"


def show_log() -> None:
    """Log warnings to standard error with time, level and name, if nobody has said otherwise.

    Without a handler Python prints the bare message, and between Spark's lines nobody knows whose
    it is. Spark's Python processes, where this is called, have none.
    """
    logger = logging.getLogger("kshare")
    if logging.getLogger().handlers or logger.handlers:
        return
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter(_FORMAT, _TIME))
    logger.addHandler(handler)
