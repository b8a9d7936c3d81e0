"""The engine's intake: how records get from the reader's thread into the event loop, and out again.

Guarantees: a record counts as held from when it is sent. When :meth:`Intake.give_up` and
:meth:`Intake.drop` return, what others get is acknowledged, or held no more; of what was given up,
failed attempts are in the group's log.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from kshare.dead_letters.record import Record
from kshare.processing.consumer_edge import ConsumerEdge, message_of
from kshare.processing.engine import Engine
from kshare.processing.room import Room

__all__ = ["Intake"]

_log = logging.getLogger("kshare.processing")


class Intake:
    """Gives an engine records, and takes back those that others get. For the reader's thread.

    Args:
        loop: The event loop of the engine.
        engine: The engine.
        edge: Its edge.
        room: Its room.
        drain_seconds: Maximum time to end what handlers have of key hashes that others get.

    Attributes:
        engine: As given.
        edge: As given.
        room: As given.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        engine: Engine,
        edge: ConsumerEdge,
        room: Room,
        drain_seconds: float,
    ) -> None:
        self.engine = engine
        self.edge = edge
        self.room = room
        self._loop = loop
        self._drain_seconds = drain_seconds

    def send(self, records: Sequence[Record]) -> None:
        """Have the engine take records in the next turn of its loop."""
        self.room.send(records)
        self._loop.call_soon_threadsafe(self._take, records)

    def drop(self, is_gone: Callable[[Record], bool], *, comes_again: bool = False) -> None:
        """Others may have some records already: hold none of them.

        Args:
            is_gone: Whether they may have a record.
            comes_again: Whether this process gets these records again.
        """
        self._run(self._drop(is_gone, comes_again=comes_again))

    def give_up(self, is_gone: Callable[[Record], bool]) -> None:
        """Others shall get some records: end what handlers have of them."""
        self._run(self._give_up(is_gone))

    def changed(self) -> None:
        """Have the reader, and those who wait in the event loop, look again. From any thread."""
        self.room.changed()
        self.engine.loop.soon_from_thread(self.engine.loop.changed)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for work in the event loop: then the consumer goes on with the rebalance."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # -- in the event loop ------------------------------------------------------------------

    def _take(self, arrived: Sequence[Record]) -> None:
        self.engine.settle()  # what is given back now may be of the same keys
        records = arrived
        if self.edge.has_given_back:  # those that were on their way come again
            records = [each for each in arrived if not message_of(each).is_released()]
        self.engine.measures.read += len(records)
        self.engine.offer(records)
        # Last, so that each record counts at all times: in between some count twice.
        self.room.take(arrived)
        self.room.changed()

    async def _drop(self, is_gone: Callable[[Record], bool], *, comes_again: bool) -> None:
        self.engine.revoke(is_gone, comes_again=comes_again)
        self.engine.settle()  # give back now: the key may come again at once

    async def _give_up(self, is_gone: Callable[[Record], bool]) -> None:
        engine = self.engine
        engine.revoke(is_gone, in_order=True)
        if not await engine.loop.wait(
            lambda: not engine.scheduler.is_running(is_gone),
            self._drain_seconds,
            partial(engine.waits, "others are to get records that are in work", "handlers return"),
        ):
            _log.warning(
                "%s is still at work on records that others get now: they may be handled twice",
                engine.handler_name,
            )
        engine.settle()  # acknowledge now: the caller commits next
        await self.edge.keep_attempts()  # before the claim goes: others read them next
