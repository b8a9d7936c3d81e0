"""The checks of ``kshare doctor``: each check is a finding, and no check changes anything."""
