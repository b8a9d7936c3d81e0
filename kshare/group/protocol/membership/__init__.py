"""Membership: what members and coordinator say to each other, and what a member holds."""
