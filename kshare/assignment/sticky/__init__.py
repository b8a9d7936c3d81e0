"""The sticky assignor: tasks stay where they were, as far as even loads allow."""

from kshare.assignment.sticky.assignor import FallbackPriorTaskAssignor, StickyTaskAssignor

__all__ = ["FallbackPriorTaskAssignor", "StickyTaskAssignor"]
