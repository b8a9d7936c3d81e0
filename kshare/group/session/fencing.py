"""Shutting out the producers of other members' transactional ids."""

from collections.abc import Collection
from contextlib import closing

from kshare.options import KafkaConfig
from kshare.produce.coordinator import Coordinators

__all__ = ["fence_ids"]


def fence_ids(kafka: KafkaConfig, transactional_ids: Collection[str]) -> None:
    """Fence transactional ids, and wait until none of them has a transaction any more.

    Raises:
        AuthorizationError: The principal may not.
        KafkaError: A coordinator did not answer in time, or refused.
    """
    ids = "transactional ids of the group's members"
    with closing(Coordinators(kafka, ids=ids)) as coordinators:
        for transactional_id in sorted(transactional_ids):
            coordinators.fence(transactional_id, until_ended=True)
