"""The commit log: its records, their bytes, and what follows from them."""
