"""What a mock cluster was asked for."""

from kshare.testing import FakeCluster


def times_asked(cluster: FakeCluster, api: str) -> int:
    """How often any of the brokers was asked, since the cluster tracks requests."""
    return sum(count for (_, name), count in cluster.requests().items() if name == api)
