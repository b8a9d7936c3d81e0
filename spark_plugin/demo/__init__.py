"""``kshare demo``: several tasks read one partition, and a checker judges what they read."""
