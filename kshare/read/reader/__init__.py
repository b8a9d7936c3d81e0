"""Reading one slice: a :class:`~kshare.core.progress.Slice` in, Arrow record batches out."""
