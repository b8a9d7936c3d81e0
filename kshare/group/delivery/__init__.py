"""What a consumer reads of its partitions, what it hands out, and what of that is processed."""
