"""The settings that all members of a group must share, as a member says them."""

import hashlib

from kshare.group.config.table import ConsumerConfig
from kshare.group.protocol.commit_log.shared_settings import Settings

__all__ = ["shared_settings"]


def shared_settings(config: ConsumerConfig) -> Settings:
    """The settings of a consumer that all members must share, each as a text.

    Which they are, and why others are not: the table of ``docs/groups.md``.
    """
    said = {
        "allow.individual.commit": _individual_text(config),
        "consumption.order": config.order,
        "keys": _keys_text(config.keys),
    }
    if config.keeps_log:
        said["individual.commit.topic"] = config.log_topic
    if config.keeps_log and not config.is_query:
        said["claim.timeout.ms"] = str(config.claim_timeout_ms)
    return tuple(sorted(said.items()))


def _individual_text(config: ConsumerConfig) -> str:
    """The value of ``allow.individual.commit``; without, also if a log is kept all the same."""
    if config.individual:
        return "true"
    return "false with transactional.id" if config.keeps_log else "false"


def _keys_text(keys: tuple[bytes, ...] | None) -> str:
    """Keys as their number and a digest: they are data, and may be long."""
    if keys is None:
        return "all"
    digest = hashlib.sha256()
    for key in sorted(set(keys)):
        digest.update(len(key).to_bytes(8, "big") + key)
    return f"{len(set(keys))} ({digest.hexdigest()[:12]})"
