"""The protocol of individual commits: pure, without I/O, clock or threads.

The broker's side of the proposal (group coordinator, individual commit log) lives in the clients
here. One totally ordered log for each group replaces locks: see :mod:`.records` for what it says,
:mod:`.log` for what follows from it, :mod:`.start` for where consumption starts.
"""
