"""Views of a query: in progress events, by ``kshare status``, as a picture."""
