"""``kshare demo``: one partition read by several tasks, watched, and judged at the end."""
