"""How the next delivery of a partition begins, while there is none."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from kshare.core.hashing import HashRange, common
from kshare.group.core.carried import Carried
from kshare.group.core.handed_out import Offsets, OpenChunks, Tell

__all__ = ["NextDelivery"]


@dataclass(frozen=True, slots=True)
class NextDelivery:
    """How the next delivery of a partition begins.

    Attributes:
        carried: What was handed out before, of hashes that stay; None: nothing is known of it.
        sought: The offset to go on at; None: where it is.
        sought_of: The key hashes that were assigned when it was sought.
        is_provisional: Whether some of what is claimed is being given up: another claim follows.
    """

    carried: Carried | None = None
    sought: int | None = None
    sought_of: tuple[HashRange, ...] = ()
    is_provisional: bool = False

    def acknowledge(self, offsets: Offsets, chunks: Collection[int], tell: Tell) -> None:
        """Records of before are acknowledged, as :meth:`.Delivery.acknowledge`."""
        handed_out = OpenChunks(() if self.carried is None else self.carried.chunks)
        handed_out.acknowledge(offsets, chunks, tell)

    def within(self, hashes: tuple[HashRange, ...]) -> "NextDelivery":
        """The same for some key hashes; a seek does not hold for quite different ones."""
        sought = self.sought if common(self.sought_of, hashes) else None
        carried = self.carried and self.carried.within(hashes)
        return replace(self, carried=carried, sought=sought, is_provisional=False)
