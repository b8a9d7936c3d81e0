"""Key hashes that come back to a process while a handler still has a record of them."""

from dataclasses import dataclass, field

from hypothesis import event, given
from hypothesis import strategies as st

from kshare.dead_letters.record import Record
from kshare.processing.core.lane import Call
from kshare.processing.core.scheduler import Scheduler
from kshare.processing.core.settings import RetryPlan, Settings
from tests.processing.core.simulation import record_of
from tests.support.effort import examples

KEYS, RECORDS = 3, 9
ERROR = OSError("no")

steps = st.lists(
    st.sampled_from(
        ["call", "call", "succeed", "fail", "give up", "lose", "come back", "come back", "tick"]
    ),
    max_size=60,
)
settings = st.builds(
    Settings,
    concurrency=st.integers(1, 4),
    batch_size=st.integers(1, 4),
    mixes_keys=st.booleans(),
    retry=st.just(RetryPlan(3, 0.2, 5.0, 0.0)),
)


@dataclass
class Processing:
    """A scheduler, whose records are read again when their key hashes come back.

    Attributes:
        running: The calls that the handler has, whatever became of their records.
        handled: The offsets that have been handled with success since they came last.
        held: The records that came last.
        is_gone: Whether others have their key hashes.
    """

    scheduler: Scheduler
    now: float = 0.0
    running: list[Call] = field(default_factory=list)
    handled: list[int] = field(default_factory=list)
    held: set[Record] = field(default_factory=set)
    is_gone: bool = True

    def come_back(self) -> None:
        if self.is_gone:
            self.is_gone, self.handled = False, []
            records = [record_of(at, at % KEYS) for at in range(RECORDS)]
            assert self.scheduler.add(records, self.now) == RECORDS
            self.held = set(records)

    def give_up(self, *, in_order: bool) -> None:
        if not self.is_gone:
            self.is_gone = True
            self.scheduler.revoke(lambda _: True, in_order=in_order)

    def call(self) -> bool:
        call = self.scheduler.next_call(self.now)
        if call is None:
            return False
        of_others = {record.lane for other in self.running for record in other.records}
        lanes = {record.lane for record in call.records}
        assert not lanes & of_others, f"two calls have {lanes & of_others}"
        assert all(record in self.held for record in call.records), "of an earlier time"
        self.running.append(call)
        return True

    def end(self, *, succeeds: bool) -> None:
        if not self.running:
            return
        call = self.running.pop(0)
        if succeeds:
            self.scheduler.done(call, self.now)
            self.handled += [r.offset for r in call.records if self._counts(r)]
        else:
            self.scheduler.failed(call, ERROR, self.now)

    def _counts(self, record: Record) -> bool:
        return not self.is_gone and record in self.held

    def tick(self) -> None:
        self.now += 10.0
        self.scheduler.tick(self.now)


@examples(400)
@given(settings, steps)
def test_no_two_calls_have_a_key_and_all_that_came_back_is_handled(
    given_settings: Settings, script: list[str]
) -> None:
    """However long a handler takes after its records were given up, in whatever order it ends."""
    each = Processing(Scheduler(given_settings))
    each.come_back()
    for step in script:
        outlived = each.is_gone and each.running
        match step:
            case "call":
                each.call()
            case "succeed" | "fail":
                each.end(succeeds=step == "succeed")
            case "give up" | "lose":
                each.give_up(in_order=step == "give up")
            case "come back":
                if outlived:
                    event("a handler outlives the way there and back")
                each.come_back()
            case "tick":
                each.tick()
    each.come_back()
    while each.running or not each.scheduler.is_idle:
        while each.call():
            pass
        each.end(succeeds=True)
        each.tick()
    assert each.scheduler.figures().records == 0
    for key in range(KEYS):
        of_key = [offset for offset in each.handled if offset % KEYS == key]
        assert of_key == sorted(set(of_key))
    handled = set(each.handled)
    ended = {outcome.record.offset for outcome in each.scheduler.outcomes}
    assert handled <= ended
    assert ended >= set(range(RECORDS))
