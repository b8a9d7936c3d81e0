"""``taskAssignor`` and what is meant for it: ``taskAssignor.NAME`` are the configs of an assignor.

Law: a name that leads to no assignor, and a config out of its limits, are faults of the options.
Cost: an import of the assignor, where one is named.
"""

from collections.abc import Mapping

from kshare.options.faults import Faults
from kshare.options.frozen import FrozenMapping

__all__ = ["is_assignor_config", "parse_task_assignor"]

_OPTION = "taskAssignor"
_PREFIX = "taskassignor."


def is_assignor_config(name: str) -> bool:
    """Whether an option is one that is handed to the task assignor."""
    return name.lower().startswith(_PREFIX)


def parse_task_assignor(
    given: Mapping[str, str], faults: Faults
) -> tuple[str | None, FrozenMapping[str, str]]:
    """Find the assignor, and its configs by Kafka's names (or whatever an assignor calls them).

    Args:
        given: the options by documented name.
        faults: takes what is wrong.

    Returns:
        The assignor's name, None if none is given; and its configs, names in lower case.
    """
    configs = {
        name[len(_PREFIX) :].lower(): value
        for name, value in given.items()
        if is_assignor_config(name)
    }
    name = given.get(_OPTION)
    if name is None and not configs:
        return None, FrozenMapping()
    from kshare.assignment import AssignmentConfigs, load_task_assignor  # noqa: PLC0415

    try:
        AssignmentConfigs.from_configs(configs)
    except ValueError as error:
        faults.add(f"{_OPTION}.*", None, str(error))
    if name is not None:
        name = name.strip()
        try:
            load_task_assignor(name, configs)
        except ValueError as error:
            faults.add(_OPTION, name, str(error))
    return name, FrozenMapping(configs)
