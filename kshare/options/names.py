"""The names that users may write: how options are spelt, and known names that are no options.

Names are compared without regard to case, as Spark does.
"""

from typing import Final

from kshare.options.table import OPTIONS

__all__ = ["NOT_BUILT", "NO_EFFECT", "REMOVED", "canonical"]

NOT_BUILT: Final = ("envelope",)
"""Options that are known and refused, because to ignore them would change what is read."""

REMOVED: Final = {
    "maxBytesPerTrigger": (
        "is no option any more: its batches cost brokers each byte twice",
        "bound a batch with maxOffsetsPerTrigger, or each task's time with targetTaskDuration",
    ),
}
"""Options of a stream that are refused: what is wrong, and what to use instead."""

NO_EFFECT: Final = {
    "reserve.message.value.range.fetch": (
        "has no effect here, because what waits for the other ranges of a partition is the fetched "
        "chunk as the broker sent it, values included; max.bytes.key.range.results bounds it"
    ),
    "accept.individual.commit": (
        "has no effect here, because it is a policy of operators: kshare policy set "
        "accept.individual.commit"
    ),
    "accept.range.fetch": (
        "has no effect here, because it is a policy of operators: kshare policy set "
        "accept.range.fetch"
    ),
}
"""Names of the key-shared consumption proposal that do nothing here, and why."""

_SPELLINGS: Final = {
    **{name.lower(): name for name in (*OPTIONS, *NOT_BUILT, *REMOVED, *NO_EFFECT)},
    **{alias.lower(): option.name for option in OPTIONS.values() for alias in option.aliases},
}


def canonical(name: str) -> str:
    """Return the documented spelling of an option; an unknown name is returned as it is.

    Args:
        name: An option in any case; ``kafka.`` properties are lower-case by nature.
    """
    lowered = name.lower()
    return lowered if lowered.startswith("kafka.") else _SPELLINGS.get(lowered, name)
