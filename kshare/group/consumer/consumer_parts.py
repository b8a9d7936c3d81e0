"""The parts of a consumer: makes them, connects them and closes them."""

import _thread
import logging
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakMethod

from kshare.core.progress import TopicPartition
from kshare.group.config.table import ConsumerConfig
from kshare.group.consumer.call_state import CallState
from kshare.group.consumer.calls import Calls
from kshare.group.consumer.commits import Commits
from kshare.group.consumer.processed import Processed, Releases
from kshare.group.consumer.reading import Reading
from kshare.group.consumer.receiver import Fresh, Receiver
from kshare.group.consumer.restrictions import Restrictions
from kshare.group.consumer.subscriber import Callbacks
from kshare.group.consumer.transaction import Transactions
from kshare.group.delivery.dispatcher import Dispatcher, reader_of
from kshare.group.delivery.shared_dispatcher import SharedDispatcher
from kshare.group.message import ReleaseCount
from kshare.group.session.session import GroupSession
from kshare.kafka.parking import Parking, ParkView
from kshare.kafka.policies import PolicyWatch
from kshare.kafka.protocol.background import Waker
from kshare.options import KafkaConfig

if TYPE_CHECKING:
    from kshare.group.consumer.typed_calls import TypedCalls

__all__ = ["ConsumerParts"]

_log = logging.getLogger("kshare.group")

_CLOSE_SECONDS: Final = 5.0
_END_SECONDS: Final = 1.0
"""Until a commit that is under way has noticed that the session is closed."""
_LAST_COMMIT_SECONDS: Final = 30.0
"""As long as Java's consumer waits when it closes."""


class ConsumerParts:
    """The parts of a consumer, made and connected; and the order in which they are closed.

    It does not hold the consumer, as threads hold it: one that nobody holds any more can be closed.

    Args:
        config: The consumer's configuration.
        session: Makes the session with the group's log.
        policies: Makes what reads the policies of operators.
        parked: Makes what reads the keys that operators have parked.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        session: Callable[..., GroupSession],
        policies: Callable[[KafkaConfig], PolicyWatch],
        parked: Callable[[KafkaConfig], ParkView],
    ) -> None:
        make_typed = _typed_calls(config)  # first: what is wrong with schemas leaves nothing open
        self.group = config.group
        fresh = Fresh(Waker().open())
        reader = reader_of(config, fresh.waker)
        self.session = session(
            config, on_change=fresh.interrupt, leader_epochs=reader.leader_epochs
        )
        count: ReleaseCount = WeakMethod(self._release_count)
        given = config, self.session, reader, count
        self.dispatcher = (
            Dispatcher(*given, parking=Parking(parked(config.kafka), fresh.interrupt))
            if config.order == "key"
            else SharedDispatcher(*given, obstacle=self._obstacle)
        )
        self.state = CallState(self.shut_down)
        restrictions = Restrictions(policies(config.kafka), config.group)
        releases = Releases(config, self.dispatcher, self.state, fresh.interrupt)
        self.processed = Processed(
            config, self.dispatcher, self.state, restrictions, self.is_subscribed, releases
        )
        self.commits = Commits(config, self.session, self.processed)
        transactions = None
        if config.transactional_id is not None:
            transactions = Transactions(
                config, self.session.transaction_log, self.processed, self.state
            )
        self.receiver = Receiver(
            self.dispatcher, self.session, self.state, self.commits, fresh, transactions
        )
        self.calls = Calls(self.receiver, self.dispatcher, self.state)
        if make_typed is not None:
            self.calls.typed = make_typed(self.receiver, self.dispatcher, self.state)
        self.reading = Reading(
            config,
            self.dispatcher,
            self.session,
            self.state,
            restrictions,
            self.receiver,
            self.commits,
        )

    def is_subscribed(self) -> bool:
        """True if the group assigns the partitions."""
        return self.receiver.subscriber is not None

    def _release_count(self, partition: TopicPartition, offset: int) -> int:
        return self.processed.releases.count(partition, offset)

    def _obstacle(self) -> str | None:
        return self.commits.obstacle()

    def shut_down(self) -> None:
        """Commit, and give up all claims."""
        transactions, subscriber = self.receiver.transactions, self.receiver.subscriber
        releases, until = self.processed.releases, time.monotonic() + _LAST_COMMIT_SECONDS
        with ExitStack() as ends:  # the last one first, whatever a callback raises
            for end in (self.receiver.fresh.waker, self.reading, self.calls):
                ends.callback(end.close)
            # Meanwhile, its thread has written all the time.
            ends.callback(lambda: releases.close(max(until - time.monotonic(), _CLOSE_SECONDS)))
            ends.callback(self.dispatcher.close)
            ends.callback(self.commits.end, _END_SECONDS)
            ends.callback(self.session.close, _CLOSE_SECONDS)
            if transactions is not None:
                ends.callback(transactions.close)
            ends.callback(self.commits.close, _LAST_COMMIT_SECONDS)
            ends.callback(self.session.expect_close)
            if subscriber is not None:
                ends.callback(subscriber.revoke_all)
                subscriber.stop_looking()

    def abandon(self) -> None:
        """Close what nobody holds any more and nobody has closed, and warn of it.

        The garbage collector calls it amid anything: it takes no lock, and waits for nothing.
        """
        state = self.state
        if state.is_closed or state.is_inherited or not state.has_begun:
            return
        state.is_closed = True
        _thread.start_new_thread(self._begin_end, ())
        warnings.warn(f"a consumer of group {self.group} was not closed", ResourceWarning, 2)

    def _begin_end(self) -> None:
        threading.Thread(target=self._end, name="kshare close", daemon=True).start()

    def _end(self) -> None:
        _log.warning("group %s: a consumer that was not closed is closed now", self.group)
        if self.receiver.subscriber is not None:  # nobody expects calls by this thread
            self.receiver.subscriber.callbacks = Callbacks()
        self.receiver.fresh.interrupt()
        self.state.shut_down()


def _typed_calls(
    config: ConsumerConfig,
) -> Callable[[Receiver, Dispatcher, CallState], "TypedCalls"] | None:
    """Makes calls with typed rows; None if keys and values are bytes.

    Raises:
        OptionsError: A schema that is given inline cannot be read.
    """
    if config.typed_rows is None:
        return None
    # Formats and a registry's client: other consumers need none of it.
    from kshare.group.consumer.typed_batches import TypedBatches  # noqa: PLC0415
    from kshare.group.consumer.typed_calls import TypedCalls  # noqa: PLC0415

    return partial(TypedCalls, TypedBatches(config), explicit=config.explicit)
