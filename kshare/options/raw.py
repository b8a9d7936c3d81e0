"""The options as given: texts by documented name, and the faults that are found in them.

Guarantee: no text form holds a value, so no traceback shows a secret.
"""

from collections.abc import Container, Mapping
from typing import Any, Self

from kshare.options.faults import Faults
from kshare.options.frozen import HIDDEN, FrozenMapping, Properties
from kshare.options.kafka_table import PROPERTIES, SECRET, Property
from kshare.options.table import OPTIONS, canonical

__all__ = ["RawOptions", "RawProperties"]


class RawProperties(Properties):
    """Properties of Kafka's client as given, in lower case, without the prefix ``kafka.``.

    Args:
        items: The texts by name.
        faults: Takes what is wrong.
    """

    __slots__ = ("faults",)

    def __init__(self, items: Mapping[str, str], faults: Faults) -> None:
        super().__init__(items)
        self.faults = faults

    def only(self, names: Container[str]) -> Self:
        """Return these properties alone."""
        kept = {name: text for name, text in self.items() if name in names}
        return type(self)(kept, self.faults)

    def value(self, name: str, table: Mapping[str, Property] = PROPERTIES) -> Any:
        """Return the value of a property of a table; None if it is not given, or wrong."""
        text, kind = self.get(name), table[name].kind
        if text is None or kind is None:
            return text
        return self.faults.parse(f"kafka.{name}", text, kind)

    def fault(self, name: str, wrong: str, right: str = "") -> None:
        """Report a fault of a property; its value is shown unless it may be a secret."""
        shown = None if name in SECRET else self.get(name)
        self.faults.add(f"kafka.{name}", shown, wrong, right)


class RawOptions(FrozenMapping[str, str]):
    """All options as given, by documented name; properties of Kafka's client apart.

    Args:
        options: As Spark passes them; names in any case.
        faults: Takes what is wrong.
    """

    __slots__ = ("faults", "kafka")

    def __init__(self, options: Mapping[str, Any], faults: Faults) -> None:
        own: dict[str, str] = {}
        kafka: dict[str, str] = {}
        for given_name, value in options.items():
            name = canonical(given_name)
            if not isinstance(value, str | int):
                faults.add(name, None, f"must be a string, not {type(value).__name__}")
                continue
            text = str(value).lower() if isinstance(value, bool) else str(value)
            into, key = (kafka, name[6:]) if name.startswith("kafka.") else (own, name)
            if into.setdefault(key, text) != text:
                faults.add(name, None, "is given twice, in different case, with different values")
        super().__init__(own)
        self.faults = faults
        self.kafka = RawProperties(kafka, faults)

    def value(self, name: str) -> Any:
        """Return the value of an option; None if it is not given, or wrong."""
        text, kind = self.get(name), OPTIONS[name].kind
        if text is None or kind is None:
            return text
        return self.faults.parse(name, text, kind)

    def fault(self, name: str, wrong: str, right: str = "") -> None:
        """Report a fault of an option, with its value."""
        self.faults.add(name, self.get(name), wrong, right)

    def __repr__(self) -> str:
        return HIDDEN
