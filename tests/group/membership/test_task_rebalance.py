"""Members whose leader has a task assignor, on the mock cluster."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kshare.assignment import (
    ApplicationState,
    AssignmentError,
    GroupAssignment,
    GroupSubscription,
    ProcessId,
    StickyTaskAssignor,
    TaskAssignment,
    TaskAssignor,
)
from kshare.core.hashing import HASH_SPACE
from kshare.testing import FakeCluster
from tests.group.membership.test_load_rebalance import Worker, check_orders, cluster, produce, start
from tests.support.groups import eventually

__all__ = ["cluster", "start"]

STATES: list[ApplicationState] = []
SENT: list[GroupAssignment] = []
LOCK = threading.Lock()


class Watched(TaskAssignor):
    """Kafka's sticky assignor, which wants to be asked again soon."""

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        with LOCK:
            STATES.append(application_state)
        first, *others = StickyTaskAssignor().assign(application_state).assignment
        return TaskAssignment(
            (first.with_followup_rebalance(application_state.now_ms + 1_000), *others)
        )

    def on_assignment_computed(
        self,
        assignment: GroupAssignment,
        subscription: GroupSubscription,
        error: AssignmentError,
    ) -> None:
        assert error is AssignmentError.NONE
        assert assignment.assignments.keys() == subscription.subscriptions.keys()
        with LOCK:
            SENT.append(assignment)


@pytest.mark.parametrize(
    "assignor",
    [pytest.param("StickyTaskAssignor", marks=pytest.mark.slow), "HighAvailabilityTaskAssignor"],
)
def test_an_assignor_deals_more_ranges_out_than_there_are_members(
    cluster: FakeCluster, start: Callable[..., Worker], assignor: str
) -> None:
    config = {"rangeAssignor": "round-robin", "taskAssignor": assignor, "minPartitions": 8}
    workers = [start(**config) for _ in range(2)]
    eventually(lambda: [worker.shares() for worker in workers] == [0.5, 0.5])
    produce(cluster, 0, 600)
    workers.append(start(**config))
    eventually(lambda: sorted(worker.shares() for worker in workers) == [0.25, 0.375, 0.375])
    produce(cluster, 600, 600)
    eventually(lambda: sum(len(worker.records) for worker in workers) >= 1200)
    check_orders(workers, 1200)


@pytest.mark.slow
def test_an_assignor_of_the_users_sees_members_and_is_asked_again(
    cluster: FakeCluster, start: Callable[..., Worker]
) -> None:
    STATES.clear()
    SENT.clear()
    config = {
        "rangeAssignor": "round-robin",
        "taskAssignor": f"{__name__}:Watched",
        "stateful": True,
        "client.rack": "r1",
        "application.server": "pod-1:8080",
    }
    first = start(**{**config, "client.tag.zone": "a"})
    eventually(lambda: first.shares() == 1.0)
    produce(cluster, 0, 90)
    second = start(**{**config, "client.tag.zone": "b"})
    eventually(lambda: first.shares() == second.shares() == 0.5)
    eventually(lambda: sum(len(worker.records) for worker in (first, second)) == 90)
    with LOCK:
        asked = len(STATES)
    eventually(lambda: len(STATES) >= asked + 2)  # nothing changes but the time

    def settled() -> Any:
        """The last state, unless one of them has just joined anew: a busy machine stops both."""
        last = STATES[-1]
        both = [last.states.get(ProcessId(w.consumer.memberid())) for w in (first, second)]
        return all(each and len(each.previous_active_tasks) == 1 for each in both) and (last, both)

    state, (one, two) = eventually(settled)
    assert [each.client_tags for each in (one, two)] == [{"zone": "a"}, {"zone": "b"}]
    assert one.rack_id == two.rack_id == "r1"
    assert all(info.is_stateful for info in state.all_tasks.values())
    (task,) = one.previous_active_tasks
    assert one.lag_for(task) == 0
    assert first.shares() == second.shares() == 0.5

    def sent() -> bool:
        """What was sent last is all that there is, half of it to each."""
        tasks = [each.active_tasks for each in SENT[-1].assignments.values()]
        ranges = [task.key_range for own in tasks for task in own if task.key_range]
        return len(tasks) == 2 and all(tasks) and sum(each.width for each in ranges) == HASH_SPACE

    eventually(sent)
