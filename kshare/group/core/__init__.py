"""The state of one member that decides: what it owns, delivers and may return.

Pure: no I/O, no threads, no clock, no log. Threads drive it, and so do the explorers. The rules of
the log's records are one layer below, in :mod:`kshare.group.protocol`.

Of the records of a consumer::

    deliveries    which partitions are delivered, and from where; it holds what follows
    delivery      one partition: what is handed out of it, and what of that is processed
    handed_out    how far its chunks are handed out, and which of their rows are not acknowledged
    scope         which of its key hashes are delivered, and from which offset on
    left_out      keys that are parked or released
    fetched_rows       what is fetched and not handed out yet
    handing_out   the next rows for a call, and what a call has collected
"""
