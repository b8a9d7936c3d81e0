"""The options as given: texts by documented name, and the faults and warnings found in them.

Guarantee: no text form holds a value, so no traceback shows a secret. A fault names its option,
says what is wrong, and what would be right where that is not obvious; all faults are reported
together.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

from kshare.core.listing import nearest
from kshare.errors import SPARK_OPTIONS, OptionsError
from kshare.options.frozen import HIDDEN, Properties
from kshare.options.kafka_table import PROPERTIES, SECRET, Property
from kshare.options.kinds import Kind
from kshare.options.names import canonical
from kshare.options.rules import Rule, applying
from kshare.options.table import OPTIONS, Option

__all__ = ["Faults", "RawOptions", "RawProperties"]

_SHOWN_MAX = 120


class Faults:
    """The faults of a set of options, and the warnings for the user."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self._unknown: list[str] = []

    def add(self, option: str, value: str | None, wrong: str, right: str = "") -> None:
        """Add a fault.

        Args:
            option: The name, as documented.
            value: The text that was given, to be shown; None if it is a secret or missing.
            wrong: What is wrong with it.
            right: What would be right.
        """
        text = f"{option}: {wrong}"
        if value is not None:
            shown = value if len(value) <= _SHOWN_MAX else f"{value[:_SHOWN_MAX]}..."
            text += f" (given: {shown!r})"
        if right:
            text += f"; {right}"
        if text not in self.problems:
            self.problems.append(text)

    def parse(self, option: str, text: str, kind: Kind) -> Any:
        """Parse the text of an option; None, and a fault, if it is wrong."""
        try:
            return kind.parse(text)
        except ValueError as error:
            self.add(option, text, str(error), getattr(error, "right", ""))
            return None

    def check(
        self,
        rules: Iterable[Rule],
        facts: Mapping[str, Any],
        given: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Report each rule that applies.

        Args:
            rules: The rules.
            facts: Values by the name of the option.
            given: Texts that faults may show, by the name of the option.
        """
        for option, rule in applying(rules, facts):
            if rule.is_warning:
                self.warn(option, rule.wrong)
            else:
                self.add(option, given.get(option), rule.wrong, rule.right)

    def warn(self, option: str, text: str) -> None:
        """Add a warning: the option works otherwise than the user may think."""
        self.warnings.append(f"option {option} {text}")

    def warn_no_effect(self, names: Sequence[str]) -> None:
        """Warn of all properties that are accepted without effect, in one line."""
        if len(names) == 1:
            self.warn(names[0], "has no effect in kshare")
        elif names:
            self.warnings.append(f"options {', '.join(names)} have no effect in kshare")

    def warn_ignored(self, name: str, why: str) -> None:
        """Warn of a name that is not taken; a fault names it, too: another may be meant."""
        self.warn(name, f"is ignored, {why}")
        self._unknown.append(f"{name}: {why}")

    def warn_unknown(self, name: str, what: str, known: Iterable[str], prefix: str = "") -> None:
        """Warn of a name that is not known, and name the nearest one, if one is near.

        Args:
            name: The name as given, without the prefix.
            what: What it is not: an option, or a property.
            known: The names that are known, without the prefix.
            prefix: What the user writes in front of all of them.
        """
        near = nearest(name, known)
        why = f"no such {what} is known"
        if near is not None:
            why += f"; the nearest known one is {prefix}{near}"
        self.warn_ignored(f"{prefix}{name}", why)

    def raise_if_any(self, of: str = SPARK_OPTIONS) -> None:
        """Raise an error that lists all faults, if there are any.

        Unknown names are listed with them: one may be a missing option's, misspelt.

        Args:
            of: What the faults are in.

        Raises:
            OptionsError: There are faults.
        """
        if self.problems:
            raise OptionsError([*self.problems, *self._unknown], of=of)


class _Given(Properties):
    """Texts by name, as given; no text form of it shows them.

    Args:
        items: The texts by name.
        faults: Takes what is wrong.
    """

    __slots__ = ("faults",)
    _prefix = ""
    _table: Mapping[str, Option | Property] = OPTIONS

    def __init__(self, items: Mapping[str, str], faults: Faults) -> None:
        super().__init__(items)
        self.faults = faults

    def value(self, name: str, table: Mapping[str, Option | Property] | None = None) -> Any:
        """Return the value of a name in a table; None if it is not given, or wrong."""
        text, kind = self.get(name), (table or self._table)[name].kind
        if text is None or kind is None:
            return text
        return self.faults.parse(f"{self._prefix}{name}", text, kind)

    def fault(self, name: str, wrong: str, right: str = "") -> None:
        """Report a fault of a name, with its text unless that may be a secret."""
        shown = None if name in SECRET else self.get(name)
        self.faults.add(f"{self._prefix}{name}", shown, wrong, right)


class RawProperties(_Given):
    """Properties of Kafka's client as given, in lower case, without the prefix ``kafka.``."""

    __slots__ = ()
    _prefix = "kafka."
    _table = PROPERTIES

    def only(self, names: Container[str]) -> Self:
        """Return these properties alone."""
        kept = {name: text for name, text in self.items() if name in names}
        return type(self)(kept, self.faults)


class RawOptions(_Given):
    """All options as given, by documented name; properties of Kafka's client apart.

    Args:
        options: As Spark passes them; names in any case.
        faults: Takes what is wrong.
    """

    __slots__ = ("kafka",)

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
        super().__init__(own, faults)
        self.kafka = RawProperties(kafka, faults)

    def of_sink(self) -> Self:
        """Return the options without those of the source alone."""
        kept = {
            name: text
            for name, text in self.items()
            if name not in OPTIONS or "sink" in OPTIONS[name].queries
        }
        return type(self)(kept, self.faults)

    def warn_unknown(self, name: str, known: Iterable[str], wrong: str | None = None) -> None:
        """Warn of an option that is not among those that are known.

        Args:
            name: The name as given.
            known: The names that are known.
            wrong: What is wrong with it, if it is known that another client has it.
        """
        if name.lower().startswith("spark."):
            self.faults.warn(name, "is ignored, it is no option but a configuration of Spark's")
        elif name.lower() == "checkpointlocation":
            self.faults.warn_ignored(name, "it belongs to the writer: set it on writeStream")
        elif wrong is not None:
            self.faults.warn_ignored(name, wrong)
        else:
            self.faults.warn_unknown(name, "option", (*known, "kafka.bootstrap.servers"))

    def __repr__(self) -> str:
        return HIDDEN
