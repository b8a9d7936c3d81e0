"""A task assignor of a user's: spare members help while others are behind."""

from kshare.assignment import (
    ApplicationState,
    KafkaStreamsAssignment,
    ProcessId,
    TaskAssignment,
    TaskAssignor,
    TaskId,
)

__all__ = ["SpareAssignor"]

_LAG_MAX = 500
_AGAIN_MS = 2_000


class SpareAssignor(TaskAssignor):
    """Deals tasks out to members without the tag ``role=spare``; to all while one lags behind.

    It is asked again every 2 s.
    """

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        members = sorted(application_state.states.values(), key=lambda each: each.process_id)
        is_behind = any(
            lag > _LAG_MAX
            for member in members
            for lag in member.stateful_tasks_to_lag_sums().values()
        )
        usual = [each for each in members if each.client_tags.get("role") != "spare"]
        workers = members if is_behind or not usual else usual
        dealt: dict[ProcessId, set[TaskId]] = {member.process_id: set() for member in members}
        for number, task in enumerate(sorted(application_state.all_tasks)):
            dealt[workers[number % len(workers)].process_id].add(task)
        first, *others = (
            KafkaStreamsAssignment(process_id, frozenset(tasks))
            for process_id, tasks in dealt.items()
        )
        again = first.with_followup_rebalance(application_state.now_ms + _AGAIN_MS)
        return TaskAssignment((again, *others))
