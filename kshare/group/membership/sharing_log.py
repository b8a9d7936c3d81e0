"""What a member logs of whether its group shares key ranges, and of other members."""

from collections.abc import Callable, Mapping

from kshare.group.core.member import Level

__all__ = ["SharingLog"]


class SharingLog:
    """Says each change once.

    Args:
        say: Logs a text of the group.
    """

    def __init__(self, say: Callable[[Level, str], None]) -> None:
        self._say = say
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
            self._say(Level.INFO, "all members are kshare consumers: key ranges are shared")
        else:
            self._say(
                Level.WARNING,
                "a member is no kshare consumer: partitions are assigned whole (by range), and key "
                "ranges are shared once all members are",
            )

    def planned(self, refusals: Mapping[str, str], plain: tuple[str, ...] = ()) -> None:
        """This member has planned a generation.

        Args:
            refusals: Why members take no part.
            plain: Ids of the members that are no kshare consumers.
        """
        for refusal in refusals.values():
            self._say(Level.WARNING, refusal)
        if plain and plain != self._plain:
            self._say(Level.INFO, f"no kshare consumers: {', '.join(plain)}")
        self._plain = plain
