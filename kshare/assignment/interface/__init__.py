"""The interface of KIP-924: what a task assignor sees, and what it answers."""
