"""Dead letters: records that cannot be processed or decoded, in a topic of their own."""
