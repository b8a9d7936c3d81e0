"""A task assignor of a user's: tasks go where their records are, until a deadline."""

from kshare.assignment import (
    ApplicationState,
    KafkaStreamsAssignment,
    KafkaStreamsState,
    ProcessId,
    TaskAssignment,
    TaskAssignor,
    TaskId,
    TaskInfo,
)

__all__ = ["LOCAL_MS", "RackAssignor"]

LOCAL_MS = 12_000


class RackAssignor(TaskAssignor):
    """Deals tasks out to members in a rack of their replicas, and to all at the deadline.

    The deadline is :data:`LOCAL_MS` after three members were seen first.
    """

    def __init__(self) -> None:
        self._deadline: int | None = None

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        now, members = application_state.now_ms, list(application_state.states.values())
        if self._deadline is None and len(members) == 3:
            self._deadline = now + LOCAL_MS
        is_over = self._deadline is not None and now >= self._deadline
        dealt: dict[ProcessId, set[TaskId]] = {member.process_id: set() for member in members}
        for number, task in enumerate(application_state.all_tasks.values()):
            near = [each for each in members if is_over or is_near(task, each)] or members
            dealt[near[number % len(near)].process_id].add(task.id)
        answers = [
            KafkaStreamsAssignment(process_id, frozenset(tasks))
            for process_id, tasks in dealt.items()
        ]
        if self._deadline is not None and not is_over:
            answers[0] = answers[0].with_followup_rebalance(self._deadline)
        return TaskAssignment(tuple(answers))


def is_near(task: TaskInfo, member: KafkaStreamsState) -> bool:
    """Whether a member is in a rack of all partitions that a task reads."""
    return all(
        member.rack_id in (each.rack_ids or ()) for each in task.topic_partitions if each.is_source
    )
