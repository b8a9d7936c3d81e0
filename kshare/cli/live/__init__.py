"""The model of ``kshare top`` and ``kshare ui``: one look after another at a query or a group."""
