"""Decides which record is handled next: events in, effects out.

::

    add --> READY --next_call--> RUNNING --done--> outcome; the lane's next record is READY
              ^                     |
              |                   failed, or too late
              |                     |
              +--tick-- WAITING <---+---> ENDING --letter_written--> outcome
                           ^                |
                           +-ending_failed--+

A lane is there as long as it has records. Its first record alone decides: while that runs, or waits
for its next attempt or its dead letter, those behind it wait, and all other lanes go on.

Guarantees: outcomes of a lane come in the order of its records; a record has one outcome; after a
lane is parked none of its records is handled, until it is unparked or others got it (``revoke``);
no lane waits for a slot twice while another one waits for it; no more is held, and no more calls
are under way, than the settings say. Cost: 4 us a record.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from kshare.dead_letters.record import Outcome, Record, Status
from kshare.processing.core.absent import AbsentLanes
from kshare.processing.core.effects import (
    Abandon,
    Cancel,
    Effect,
    Forget,
    Halt,
    ParkKey,
    Remember,
    TakeAgain,
    WriteLetter,
)
from kshare.processing.core.lane import (
    NO_TROUBLE,
    NONE_REVOKED,
    Call,
    Figures,
    HeldLanes,
    Lane,
    Phase,
    State,
    Trouble,
)
from kshare.processing.core.running_calls import RunningCalls
from kshare.processing.core.sequences import Sequences
from kshare.processing.core.settings import OnFailure, Settings

__all__ = ["Scheduler"]

_ENDING_SECONDS_MAX = 30.0


class Scheduler:
    """Decides which record is handled next. For one thread; times are in seconds since 1970.

    Args:
        settings: How to schedule.

    Attributes:
        concurrency: Maximum number of calls at a time; may be changed at any time.
        effects: What the driver is to do; it empties the list.
        outcomes: What became of records, in each lane's order; the driver empties the list.
        sequences: Keys whose records go to the dead-letter topic, unhandled, and from where on.
    """

    def __init__(self, settings: Settings) -> None:
        self.concurrency = settings.concurrency
        self.effects: list[Effect] = []
        self.outcomes: list[Outcome] = []
        self.sequences = Sequences()
        self._settings = settings
        self._running = RunningCalls(settings)
        self._held = HeldLanes()
        self._absent = AbsentLanes(settings, self._held)
        self._phase = Phase.OPEN

    # -- what there is ----------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Number of records that may be added now."""
        if self.bytes_left <= 0 or self._phase:
            return 0
        return self._settings.records_max - self._held.records

    @property
    def bytes_left(self) -> int:
        """Size of the records that may be added now; one may be larger if none is held."""
        return self._settings.bytes_max - self._held.size

    @property
    def is_idle(self) -> bool:
        """True if there is nothing to wait for, in this phase."""
        lanes = self._held.lanes
        if self._phase is Phase.CLOSING:
            is_ending = any(lane.state is State.ENDING for lane in lanes.values())
            return not self._running and not is_ending
        if self._phase is Phase.DRAINING:
            return all(lane.state is State.WAITING for lane in lanes.values())
        return not lanes

    def figures(self) -> Figures:
        """Counts of what is held now, from any thread. Linear in the lanes."""
        return self._held.figures(len(self._running))

    def lanes(self) -> list[Lane]:
        """The lanes now, from any thread; only to be read."""
        return list(self._held.lanes.values())

    def firsts(self) -> list[Record]:
        """The first record of each lane, from any thread."""
        return self._held.firsts()

    # -- records ----------------------------------------------------------------------------

    def add(self, records: Sequence[Record], now: float) -> int:
        """Take the next records, in offset order for each lane; leave over those of parked lanes.

        Returns:
            How many were taken: the first ones, as many as the bounds allow. Offer the others
            again.
        """
        held, settings = self._held, self._settings
        lanes, parked, put_off, taken = held.lanes, self._absent.parked, self._absent.put_off, 0
        for record in islice(records, max(self.room, 0)):
            if held.size + record.size > settings.bytes_max and held.records:
                break
            taken += 1
            if parked and record.lane in parked:
                self._leave_over(record)
                continue
            lane = lanes.get(record.lane)
            if (lane is not None and lane.given_back is not None) or (
                put_off and record.lane in put_off
            ):
                continue  # it was on its way, and comes again
            held.records += 1
            held.size += record.size
            if lane is not None:
                lane.records.append(record)
                lane.size += record.size
                if lane.state >= State.WAITING:
                    self.effects += self._absent.limit(lane)
            else:
                lanes[record.lane] = lane = Lane(record.lane, record)
                self._advance(lane, now)
        self.effects += self._absent.make_room()
        return taken

    def next_call(self, now: float) -> Call | None:
        """Begin the next call of the handler; None if none may begin now."""
        ready, settings = self._held.ready, self._settings
        if not ready or len(self._running) >= self.concurrency or self._phase is Phase.CLOSING:
            return None
        if settings.batch_size > 1:
            call = self._held.batch(settings.batch_size, now, mixes_lanes=settings.mixes_keys)
        else:
            lane = ready.popleft()
            lane.state, lane.running = State.RUNNING, 1
            call = Call([lane], [lane.records[0]], now)
        self._running.begin(call)
        return call

    def not_called(self, call: Call, now: float) -> None:
        """A call was begun, and its handler may not be called now: its lanes wait for another."""
        if self._running.end(call):
            for lane in call.lanes:
                lane.running = 0
                if not self._is_away(lane, now):
                    self._held.set_ready(lane)

    # -- answers of handlers ----------------------------------------------------------------

    def done(
        self, call: Call, now: float, results: Sequence[Any] = (), status: Status = Status.DONE
    ) -> bool:
        """A call has succeeded.

        Args:
            call: The call.
            now: The time.
            results: A result for each record; none: None for each.
            status: What became of the records.

        Returns:
            Whether the answer counts; False if it came too late.
        """
        if call.is_cancelled:
            return self.failed(call, TimeoutError(), now)
        if not self._running.end(call):
            return False
        if len(call.records) == 1:  # as most are: the general way takes a tenth longer
            lane = call.lanes[0]
            self._finish(lane, status, results[0] if results else None)
            self._advance(lane, now)
            return True
        at = 0
        for lane in call.lanes:
            for _ in range(lane.running):
                self._finish(lane, status, results[at] if results else None)
                at += 1
            self._advance(lane, now)
        return True

    def failed(
        self,
        call: Call,
        error: BaseException,
        now: float,
        *,
        is_final: bool = False,
        after: float | None = None,
    ) -> bool:
        """A call has failed.

        A batch that failed is tried again record by record, as one of them may be the reason.

        Args:
            call: The call.
            error: Why.
            now: The time.
            is_final: Whether another attempt is of no use.
            after: Seconds until the next attempt, if the handler has said so; this one does not
                count then.

        Returns:
            Whether the answer counts; False if it came too late.
        """
        if not self._running.end(call):
            return False
        if call.is_cancelled:
            seconds = self._settings.timeout_seconds
            error = TimeoutError(f"the handler took longer than its timeout, {seconds:g} s")
            is_final, after = False, None
        for lane in call.lanes:
            self._failed(call, lane, error, now, is_final=is_final, after=after)
        return True

    def partly_done(
        self,
        call: Call,
        answers: Sequence[tuple[Status, Any, BaseException | None]],
        now: float,
        *,
        is_final: Callable[[BaseException], bool] = lambda _: False,
        after: Callable[[BaseException], float | None] = lambda _: None,
    ) -> bool:
        """A batch has an answer for each record; after one that failed, its lane's do not count.

        Args:
            call: The call.
            answers: For each record: what became of it, the result, and why it failed.
            now: The time.
            is_final: Whether another attempt is of no use after some error.
            after: Seconds until the next attempt, if an error says so; this one does not count
                then.

        Returns:
            Whether the answer counts; False if it came too late.
        """
        if call.is_cancelled:
            return self.failed(call, TimeoutError(), now)
        if not self._running.end(call):
            return False
        at = 0
        for lane in call.lanes:
            of_lane = answers[at : at + lane.running]
            at += lane.running
            for status, result, error in of_lane:
                if error is not None:
                    seconds = after(error)
                    if seconds is None:
                        self._record_failed(lane, error, now, is_final=is_final(error))
                    else:
                        self._wait(lane, error, now, now + max(seconds, 0.0))
                    break
                self._finish(lane, status, result)
            else:
                self._advance(lane, now)
        return True

    def abandoned(self, call: Call) -> None:
        """A call ends the processor: its records have no outcome, and what is held of its lanes."""
        if self._running.end(call):
            for lane in call.lanes:
                self._leave(lane, Status.LEFT_OVER)

    def _failed(
        self,
        call: Call,
        lane: Lane,
        error: BaseException,
        now: float,
        *,
        is_final: bool,
        after: float | None,
    ) -> None:
        if after is not None:
            self._wait(lane, error, now, now + max(after, 0.0))
        elif len(call.records) > 1:
            lane.trouble = lane.trouble._replace(singly=lane.running)
            delay = self._settings.retry.delay(1, lane.records[0].offset)
            self._wait(lane, error, now, now + delay, remembers=False)
        else:
            self._record_failed(lane, error, now, is_final=is_final)

    def _record_failed(
        self, lane: Lane, error: BaseException, now: float, *, is_final: bool
    ) -> None:
        record, retry = lane.records[0], self._settings.retry
        record.failures += 1
        if is_final or record.failures >= retry.attempts:
            record.since = now if record.since is None else record.since
            lane.trouble = lane.trouble._replace(error=error, is_exhausted=True)
            lane.running = 0
            if not self._is_parked_now(lane):
                self._exhausted(lane, error)
        else:
            self._wait(lane, error, now, now + retry.delay(record.failures, record.offset))

    def _wait(
        self, lane: Lane, error: BaseException, now: float, due: float, *, remembers: bool = True
    ) -> None:
        record = lane.records[0]
        record.since = now if record.since is None else record.since
        record.due = due
        if remembers and lane.revoked.get(record, True):  # also for others, who get it in order
            self.effects.append(Remember(record))
        if self._is_away(lane, now):
            return
        lane.trouble, lane.running = lane.trouble._replace(error=error), 0
        self._held.wait(lane, due)
        self.effects += self._absent.limit(lane)

    def _exhausted(self, lane: Lane, error: BaseException | None) -> None:
        lane.state = State.ENDING
        record, settings = lane.records[0], self._settings
        self.effects += self._absent.limit(lane)
        if settings.on_failure is OnFailure.DEAD_LETTER:
            keyed = record.raw_key is not None  # none follows one without a key
            follows = self.sequences.follows(record)
            if follows and error is None:
                error = self.sequences.reason_of(record)
                lane.trouble = lane.trouble._replace(error=error)
            begins = settings.sequence and keyed and not follows
            self.effects.append(WriteLetter(lane, record, error, begins))
        elif settings.on_failure is OnFailure.PARK:
            self.effects.append(ParkKey(lane, record, error))
        else:
            assert error is not None
            self._phase = Phase.CLOSING
            self.outcomes.append(
                Outcome(record, Status.FAILED, error=error, attempts=record.failures)
            )
            self._held.less((lane.records.popleft(),))
            lane.trouble = NO_TROUBLE
            self._leave(lane, Status.LEFT_OVER)  # what follows: nobody has to wait for it
            self.effects.append(Halt(record, error))

    # -- answers of the driver --------------------------------------------------------------

    def letter_written(self, lane: Lane, now: float) -> None:
        """The broker has the dead letter of a lane's first record."""
        if lane.state is not State.ENDING:
            return
        # Its key may be unparked while one that follows is under way.
        if self._settings.sequence and lane.trouble.is_exhausted:
            self.sequences.begin(lane.records[0])
        self._finish(lane, Status.DEAD_LETTERED, None)
        if not lane.records or not self._is_others(lane, now):  # what was in its batch may be
            self._advance(lane, now)

    def ending_failed(self, lane: Lane, now: float) -> None:
        """A dead letter could not be written, or a key not be parked: it is tried again later."""
        if lane.state is State.ENDING and not self._is_away(lane, now):
            retry = self._settings.retry
            times = lane.trouble.failed_endings + 1
            lane.trouble = lane.trouble._replace(failed_endings=times)
            delay = retry.delay(times, lane.records[0].offset)
            self._held.wait(lane, now + min(delay, _ENDING_SECONDS_MAX))

    def parked(self, lane: Lane) -> list[Record]:
        """The key of a lane is parked: its records are pending, and so are those that come later.

        They are left over even when the key is unparked: they would overtake those before them,
        which come again only when the lane is read anew (:meth:`unparked`, :meth:`revoke`).

        Returns:
            The records that are held no more.
        """
        return self._park(lane) if lane.state is State.ENDING else []

    def park(self, keys: Iterable[Hashable]) -> None:
        """Operators have parked the keys of some lanes: they are parked, as after a failure.

        A call that is under way, or a dead letter, ends first: its record has its outcome if it
        succeeds, and is parked with the others if it does not. Each time, say all keys.
        """
        for lane in self._absent.begin_parking(keys):
            self._park(lane)

    def _is_parked_now(self, lane: Lane) -> bool:
        """Park a lane if its key was parked while something of it was under way."""
        if lane.key not in self._absent.parking:
            return False
        self._absent.parking.discard(lane.key)
        lane.state = State.RUNNING  # it is in no queue: a new one neither
        self._park(lane)
        return True

    def _park(self, lane: Lane) -> list[Record]:
        failed = lane.records[0]
        # Once it is unparked, it has all its attempts.
        if failed.since is not None and failed not in lane.revoked:
            self.effects.append(Forget(failed, is_parked=True))
        self.effects += self._absent.park(lane)
        return self._leave(lane, Status.PARKED)

    def unparked(self, key: Hashable) -> None:
        """The key of a lane is parked no more: its records are added again, from the first one."""
        self.effects += self._absent.unpark(key)

    @property
    def parked_lanes(self) -> Mapping[Hashable, Record]:
        """The parked lanes that can be unparked, and the record that each was parked with."""
        return self._absent.parked if self._settings.gives_back else {}

    def _leave(self, lane: Lane, status: Status) -> list[Record]:
        records, error = list(lane.records), lane.trouble.error
        for record in records:
            self.outcomes.append(Outcome(record, status, None, error, record.failures))
            status, error = Status.LEFT_OVER, None
        self._held.remove(lane)
        return records

    def _leave_over(self, record: Record) -> None:
        self.outcomes.append(Outcome(record, Status.LEFT_OVER, attempts=record.failures))

    # -- time, and the end ------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """End what took too long, and let go on what has waited long enough."""
        for call in self._running.late(now):
            if not call.is_cancelled:
                call.is_cancelled = True
                self.effects.append(Cancel(call))
            if self._running.is_overdue(call, now):
                self.effects.append(Abandon(call))
                self.failed(call, TimeoutError(), now)
        while not self._phase and (lane := self._held.take_due(now)):
            if lane.trouble.is_exhausted or self.sequences.follows(lane.records[0]):
                self._exhausted(lane, lane.trouble.error)
            else:
                self._held.set_ready(lane)
        if not self._phase:
            self.effects += self._absent.take_due(now)

    def next_tick(self) -> float | None:
        """Time at which :meth:`tick` has something to do; None if nothing waits for a time."""
        times = [self._running.next_due()]
        if not self._phase:
            times += self._held.next_due(), self._absent.next_due()
        return min([due for due in times if due is not None], default=None)

    def close(self, phase: Phase) -> None:
        """Take no more records, and handle only those that a phase says."""
        self._phase = max(self._phase, phase)

    def revoke(
        self,
        is_gone: Callable[[Record], bool],
        *,
        in_order: bool = False,
        comes_again: bool = False,
    ) -> None:
        """Hold no more of some lanes than what a handler has now: others get their records.

        If these lanes come back, they are read anew, so they are parked no more.

        Args:
            is_gone: Whether others get a record.
            in_order: Whether they get it once what is under way has ended: its failed attempts are
                kept for them then. Otherwise they may have it already, and know more.
            comes_again: Whether this process gets these records again: so does, of their lanes,
                what was given back.
        """
        if comes_again:
            self.effects += [
                TakeAgain(lane.given_back)
                for lane in self._held.lanes.values()
                if lane.given_back is not None and any(map(is_gone, lane.records))
            ]
        self._absent.revoke(is_gone)
        self._held.revoke(is_gone, in_order=in_order)

    def _is_others(self, lane: Lane, now: float) -> bool:
        """Drop what others got of a lane while it was under way; True if its first one was that."""
        if not lane.revoked:
            return False
        first, gone = lane.records[0], [each for each in lane.records if each in lane.revoked]
        lane.revoked = NONE_REVOKED
        for record in gone:
            self._leave_over(record)
        self._held.drop(lane, set(gone))
        if not lane.records:
            self._held.remove(lane)
            return True
        if lane.records[0] is first:
            return False
        self._advance(lane, now)
        return True

    def _is_away(self, lane: Lane, now: float) -> bool:
        """As :meth:`_is_others`; True, too, if all that is left of the lane is parked now."""
        return self._is_others(lane, now) or self._is_parked_now(lane)

    def is_running(self, is_of: Callable[[Record], bool]) -> bool:
        """True if a handler has some record, or its dead letter is under way."""
        return self._held.is_running(is_of)

    def leave_all(self) -> None:
        """Say of all records that are held that they are left over; no answer counts any more."""
        self._running.end_all()
        for lane in list(self._held.lanes.values()):
            self._leave(lane, Status.LEFT_OVER)

    # -- lanes ------------------------------------------------------------------------------

    def _finish(self, lane: Lane, status: Status, result: Any) -> None:
        """The first record of a lane has its outcome."""
        record, held = lane.records.popleft(), self._held
        held.records -= 1
        held.size -= record.size
        lane.size -= record.size
        if record.since is not None:
            self.effects.append(Forget(record))
        trouble = lane.trouble
        if trouble is not NO_TROUBLE:
            singly = max(trouble.singly - 1, 0)
            lane.trouble = Trouble(singly=singly) if singly else NO_TROUBLE
        if status is Status.DEAD_LETTERED:
            self.outcomes.append(Outcome(record, status, None, trouble.error, record.failures))
        else:
            self.outcomes.append(Outcome(record, status, result, None, record.failures + 1))

    def _advance(self, lane: Lane, now: float) -> None:
        """Begin with the record that is the first of its lane now."""
        lane.running, lane.revoked, held = 0, NONE_REVOKED, self._held
        if not lane.records:
            if held.lanes.get(lane.key) is lane:
                del held.lanes[lane.key]
            if lane.given_back is not None:
                self.effects.append(TakeAgain(lane.given_back))
            return
        if self._absent.parking and self._is_parked_now(lane):
            return
        first, sequences = lane.records[0], self.sequences
        if sequences.marks and self._phase is not Phase.CLOSING and sequences.follows(first):
            self._exhausted(lane, None)
        elif first.due > now:
            held.wait(lane, first.due)
        else:
            held.set_ready(lane)
