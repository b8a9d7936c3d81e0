"""Values that do not change: mappings, properties, secrets.

Guarantee: equal contents compare equal and hash equal, in any order; all of it pickles, and no text
form of :class:`Properties` or :class:`Secret` holds a value.
"""

import hashlib
import pickle
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

__all__ = ["HIDDEN", "FrozenMapping", "Properties", "Secret", "digest_of"]

HIDDEN: Final = "<hidden>"
"""Shown in place of a secret."""

K = TypeVar("K")
V_co = TypeVar("V_co", covariant=True)


class FrozenMapping(Mapping[K, V_co]):
    """A mapping that does not change, with a hash.

    Args:
        items: Copied; the order is kept.
    """

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[K, V_co] | None = None) -> None:
        self._items: dict[K, V_co] = dict(items or {})

    def __getitem__(self, key: K) -> V_co:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FrozenMapping):
            return self._items == other._items
        return self._items == other if isinstance(other, Mapping) else NotImplemented

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._items,))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._items!r})"


class Properties(FrozenMapping[str, str]):
    """Properties of Kafka's client, of which any may be a secret: texts of it hold names only."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self)})"


class Secret:
    """A text that only :meth:`reveal` shows.

    Args:
        text: The secret.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the secret."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Secret, (self._text,))

    def __repr__(self) -> str:
        return HIDDEN


def digest_of(value: object) -> bytes:
    """The SHA-256 digest of a value, as the key of what is kept for it.

    So the memory of the process holds no second copy of a secret. Values are compared as they are
    pickled: equal ones that pickle in another way only have what is kept made anew.
    """
    return hashlib.sha256(pickle.dumps(value)).digest()
