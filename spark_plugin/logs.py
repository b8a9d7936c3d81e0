"""kshare's log in the form of Spark's lines, on the standard error of Spark's Python processes."""

import logging
import os
from typing import Final

from kshare.log_format import PrintableFormatter

__all__ = ["show_log"]

_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_TIME: Final = "%y/%m/%d %H:%M:%S"
_VARIABLE: Final = "KSHARE_LOG_LEVEL"
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


def show_log() -> None:
    """Log to standard error with time, level and name, unless logging is set up already.

    Spark's Python processes have no handler. Python would then print the bare message, and a reader
    of Spark's log could not tell where it comes from. Lines from ``KSHARE_LOG_LEVEL`` on are shown,
    by default from WARNING on.
    """
    logger = logging.getLogger("kshare")
    if logging.getLogger().handlers or logger.handlers:
        return
    given = os.environ.get(_VARIABLE, "").strip() or "WARNING"
    is_known = given.upper() in _LEVELS
    level = given.upper() if is_known else "WARNING"
    handler = logging.StreamHandler()
    handler.setLevel(level)
    handler.setFormatter(PrintableFormatter(_FORMAT, _TIME))
    logger.addHandler(handler)
    logger.setLevel(level)
    if not is_known:
        logger.warning("%s=%s is ignored; give one of %s", _VARIABLE, given, ", ".join(_LEVELS))
