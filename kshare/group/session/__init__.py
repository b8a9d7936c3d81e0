"""A consumer's session with its group: claims, starts and commits, in a thread of its own."""
