"""Assignors by name: what goes wrong when one is told of its answer changes nothing."""

from typing import Any

from kshare.assignment import (
    ApplicationState,
    AssignmentError,
    GroupAssignment,
    GroupSubscription,
    TaskAssignment,
    TaskAssignor,
)
from kshare.assignment.loading import notify


class Deaf(TaskAssignor):
    """Hears nothing."""

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        raise AssertionError(f"asked about {application_state}")


class Listener(Deaf):
    """Hears all."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_assignment_computed(
        self,
        assignment: GroupAssignment,
        subscription: GroupSubscription,
        error: AssignmentError,
    ) -> None:
        self.told.append((assignment, subscription, error))


def no_outcome() -> tuple[GroupAssignment, GroupSubscription]:
    raise LookupError("of hunter22")


def test_an_outcome_that_cannot_be_made_is_a_fault_and_no_error() -> None:
    listener = Listener()
    (fault,) = notify(listener, no_outcome, AssignmentError.NONE, {"password": "hunter22"})
    assert "on_assignment_computed failed, which changes nothing: LookupError" in fault
    assert "hunter22" not in fault
    assert listener.told == []


def test_what_does_not_listen_needs_no_outcome() -> None:
    assert notify(Deaf(), no_outcome, AssignmentError.NONE, {}) == []
