"""``taskAssignor`` and its configs: ``taskAssignor.NAME``.

Guarantee: a name that leads to no assignor and a config out of bounds are faults of the options.
The assignor that is made to check this is the one that the planner asks: it is configured once. No
text form of the configs holds a value, since any may be a secret.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kshare.options.faults import Faults
from kshare.options.frozen import FrozenMapping, Properties

if TYPE_CHECKING:
    from kshare.assignment import TaskAssignor

__all__ = ["is_assignor_config", "made_task_assignor", "parse_task_assignor"]

_OPTION = "taskAssignor"
_PREFIX = "taskassignor."


class _Configs(Properties):
    """An assignor's configs, and in the process that parsed them the assignor.

    The assignor is no part of the value: neither compared, nor shown, nor pickled.
    """

    __slots__ = ("made",)

    def __init__(
        self, items: Mapping[str, str] | None = None, made: "TaskAssignor | None" = None
    ) -> None:
        super().__init__(items)
        self.made = made


def is_assignor_config(name: str) -> bool:
    """True if an option is a config of the task assignor."""
    return name.lower().startswith(_PREFIX)


def parse_task_assignor(
    raw: Mapping[str, str],
    faults: Faults,
    *,
    makes_assignor: bool,
    given: type | None = None,
) -> tuple[str | None, FrozenMapping[str, str]]:
    """Parse the name of the assignor and its configs.

    Args:
        raw: The options by documented name.
        faults: Takes what is wrong.
        makes_assignor: Whether to make the assignor, so that its faults are found.
        given: The class that is named; None to look for it.

    Returns:
        The assignor's name, None if none is given; and its configs, names in lower case.
    """
    configs = {
        name[len(_PREFIX) :].lower(): value
        for name, value in raw.items()
        if is_assignor_config(name)
    }
    name = raw.get(_OPTION)
    if name is None and not configs:
        return None, FrozenMapping()
    # 15 ms of a planner's start, and most queries name no assignor.
    from kshare.assignment import AssignmentConfigs, load_task_assignor  # noqa: PLC0415

    made = None
    try:
        AssignmentConfigs.from_configs(configs)
    except ValueError as error:
        faults.add(f"{_OPTION}.*", None, str(error))
    if name is not None:
        name = name.strip()
    if name is not None and makes_assignor:
        try:
            made = load_task_assignor(given or name, configs)
        except ValueError as error:
            faults.add(_OPTION, name, str(error))
    return name, _Configs(configs, made)


def made_task_assignor(configs: FrozenMapping[str, str]) -> "TaskAssignor | None":
    """Return the assignor that was made and configured when these configs were parsed.

    None if none was named, or if the configs came from another process.
    """
    return configs.made if isinstance(configs, _Configs) else None
