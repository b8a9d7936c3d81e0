"""Key-shared consumer groups on unmodified brokers.

Several processes of one consumer group share a partition, each a range of key hashes. What they
have processed they write as individual commits into a compacted topic.
"""
