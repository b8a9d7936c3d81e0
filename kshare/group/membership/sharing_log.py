"""What a member logs of whether its group shares key ranges, and of other members."""

import logging
from collections.abc import Mapping

__all__ = ["SharingLog"]

_log = logging.getLogger("kshare.group")


class SharingLog:
    """Says each change once.

    Args:
        group: Id of the group.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._shares: bool | None = None  # as was said last
        self._plain: tuple[str, ...] = ()

    def assigned(self, shares: bool | None) -> None:
        """Something was assigned.

        Args:
            shares: Whether key ranges are shared; None if nothing was assigned.
        """
        if shares is None or shares == self._shares:
            return
        self._shares = shares
        if shares:
            _log.info(
                "group %s: all members are kshare consumers: key ranges are shared", self._group
            )
        else:
            _log.warning(
                "group %s: a member is no kshare consumer: partitions are assigned whole (by "
                "range), and key ranges are shared once all members are",
                self._group,
            )

    def planned(self, refusals: Mapping[str, str], plain: tuple[str, ...] = ()) -> None:
        """This member has planned a generation.

        Args:
            refusals: Why members take no part.
            plain: Ids of the members that are no kshare consumers.
        """
        for refusal in refusals.values():
            _log.warning("group %s: %s", self._group, refusal)
        if plain and plain != self._plain:
            _log.info("group %s: no kshare consumers: %s", self._group, ", ".join(plain))
        self._plain = plain
