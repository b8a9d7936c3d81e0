"""The state of one member that decides: what it owns, delivers and may return.

Pure: no I/O, no threads, no clock, no log. Threads drive it, and so do the explorers. The rules of
the log's records are one layer below, in :mod:`kshare.group.protocol`.
"""
