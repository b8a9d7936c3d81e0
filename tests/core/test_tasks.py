"""What is sent to the executors."""

import pickle

from kshare.core.fetch_groups import FetchGroup
from kshare.core.hashing import WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice
from kshare.core.tasks import PlannedSlice, Task, Ticket, TicketId

SLICE = Slice("t", 3, (Rectangle(OffsetRange(0, 9), WHOLE),))
TICKET = Ticket("planner", 4711, b"k" * 32, "batch", 5, hold=True)


def test_a_task_travels() -> None:
    group = FetchGroup("query", "batch", 0, 1, ((0, 9, 2),))
    task = Task((PlannedSlice(SLICE, 7, TICKET, group), PlannedSlice(SLICE)))
    assert pickle.loads(pickle.dumps(task)) == task


def test_a_ticket_shows_no_secret() -> None:
    assert TICKET.id == TicketId("batch", 5)
    for text in (repr(TICKET), str(TICKET), repr(PlannedSlice(SLICE, ticket=TICKET))):
        assert "kkkk" not in text
        assert TICKET.key.hex() not in text
