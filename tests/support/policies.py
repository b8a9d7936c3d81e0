"""Policies that live in memory."""

from kshare.kafka.policies import Policy, PolicyWatch
from kshare.options import KafkaConfig

__all__ = ["FakePolicies"]


class FakePolicies(PolicyWatch):
    """Policies of which some do not accept; called to make what reads them."""

    def __init__(self, *denied: Policy) -> None:
        self.denied = set(denied)
        self.asked: list[Policy] = []
        self.is_closed = False

    def __call__(self, kafka: KafkaConfig) -> "FakePolicies":
        return self

    def accepts(self, policy: Policy) -> bool:
        self.asked.append(policy)
        return policy not in self.denied

    def close(self) -> None:
        self.is_closed = True
