"""The consumer: what its user calls, for threads and for asyncio."""
