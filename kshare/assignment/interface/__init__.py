"""The interface of KIP-924: what a task assignor is shown, and what it answers."""
