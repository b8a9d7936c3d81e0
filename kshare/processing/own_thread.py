"""A call in a thread of its own: for coroutines, where handlers may fill the threads of asyncio."""

import asyncio
from collections.abc import Callable

from kshare.kafka.protocol.background import begin

__all__ = ["in_own_thread"]


async def in_own_thread(call: Callable[[], object]) -> None:
    """Call something in a thread; handlers may fill those of asyncio, with calls that hang."""
    await asyncio.shield(asyncio.wrap_future(begin(call, "kshare-edge", lambda: None)))
