"""kshare: many key-ordered tasks on one Kafka partition.

These names are enough to read slices without Spark. The plug-in for Spark is ``spark_plugin``, and
the test kit is :mod:`kshare.testing`.

Of this module, only the names in ``__all__`` are public.
Cost: nothing until a name is used: planners and ``kshare --help`` start without Arrow and the
kernels.
"""

from typing import TYPE_CHECKING

from kshare._version import __version__
from kshare.lazy import names_of

if TYPE_CHECKING:
    from kshare.core.hashing import WHOLE, HashRange, hash_ranges, key_hash
    from kshare.core.offsets import OffsetRange
    from kshare.core.progress import Progress, Slice, TopicPartition
    from kshare.core.region import Rectangle
    from kshare.errors import KshareError
    from kshare.typed_slices import read_slice

__all__ = [
    "WHOLE",
    "HashRange",
    "KshareError",
    "OffsetRange",
    "Progress",
    "Rectangle",
    "Slice",
    "TopicPartition",
    "__version__",
    "hash_ranges",
    "key_hash",
    "read_slice",
]

_HOMES = {
    "WHOLE": "kshare.core.hashing",
    "HashRange": "kshare.core.hashing",
    "KshareError": "kshare.errors",
    "OffsetRange": "kshare.core.offsets",
    "Progress": "kshare.core.progress",
    "Rectangle": "kshare.core.region",
    "Slice": "kshare.core.progress",
    "TopicPartition": "kshare.core.progress",
    "hash_ranges": "kshare.core.hashing",
    "key_hash": "kshare.core.hashing",
    "read_slice": "kshare.typed_slices",
}

__getattr__ = names_of(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
