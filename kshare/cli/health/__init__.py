"""What ``kshare doctor`` looks at: each check is a finding, and no check changes anything."""
