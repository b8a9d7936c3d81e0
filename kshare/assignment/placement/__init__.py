"""Tasks and processes as numbers, and what both assignors do with them."""
