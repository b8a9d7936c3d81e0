"""The names under which Spark knows kshare's source: its own, and those of sources with handlers.

A source whose tasks call handlers is registered anew for each call of ``process_by_key``, beside
the one that users name. It reads what that one reads, so all that is said of kshare's sources is
said of it.
"""

from secrets import token_hex
from typing import Final

__all__ = ["FORMAT", "is_ours", "name_with_handlers"]

FORMAT: Final = "kshare"
"""The name that users write in ``format(...)``."""
_WITH_HANDLERS: Final = "kshare-handlers-"


def name_with_handlers() -> str:
    """A new name for a source whose tasks call handlers."""
    return f"{_WITH_HANDLERS}{token_hex(4)}"


def is_ours(name: str) -> bool:
    """True if a source of this name, as a plan of Spark has it, is kshare's."""
    lower = name.lower()
    return lower == FORMAT or lower.startswith(_WITH_HANDLERS)
