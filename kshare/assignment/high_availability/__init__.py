"""The high-availability assignor: tasks run where their state is (KIP-441)."""

from kshare.assignment.high_availability.assignor import HighAvailabilityTaskAssignor

__all__ = ["HighAvailabilityTaskAssignor"]
