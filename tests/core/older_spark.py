"""What Spark 4.0 and 4.1 call of a source, and after which batch its planner plans by that.

They ask ``latestOffset()`` without a start. :class:`~spark_plugin.plain_reader.LoggedEnd` finds it
from the calls of this process, which are values here: a name of a batch stands for its offsets.
"""

from collections.abc import Sequence
from functools import partial

from spark_plugin.plain_reader import LoggedEnd

Call = tuple[str, ...]
BEGIN = "begin"
"""Where a new query starts."""


def calls_of_restart(logged: Sequence[str], commits: int) -> tuple[Call, ...]:
    """What a process calls before it asks for an end.

    Args:
        logged: The batches of the offset log.
        commits: How many of them are in the commit log; a last one that is not is run again.
    """
    if not logged:
        return ()
    seen: tuple[Call, ...] = (("partitions", logged[-1], logged[-1]),)
    return seen if commits >= len(logged) else (*seen, *calls_of_run(logged))


def calls_of_log(logged: Sequence[str]) -> tuple[Call, ...]:
    """What is called when the last of these batches has been logged, up to its tasks."""
    answered = ("latestOffset", logged[-1])
    committed = [("commit", batch) for batch in logged[-2:-1]]
    return (answered, *committed, *calls_of_run(logged))


def calls_of_run(logged: Sequence[str]) -> tuple[Call, ...]:
    """What is called to run the last of these batches."""
    if len(logged) == 1:
        return (("initialOffset",), ("partitions", BEGIN, logged[0]))
    return (("partitions", *logged[-2:]),)


def _answered(answer: str, _: str) -> str:
    return answer


def planned_after(calls: Sequence[Call]) -> str | None:
    """After which batch a planner plans that Spark asks for an end now; None: it answers as before.

    Raises:
        KshareError: The calls come in an unknown order.
    """
    known = LoggedEnd(lambda: BEGIN, "Spark 4.0.2")
    for verb, *offsets in calls:
        match verb:
            case "latestOffset":
                known.next_end(partial(_answered, offsets[0]))
            case "initialOffset":
                known.initial_asked()
            case "partitions":
                known.planned(*offsets)
            case _:
                known.committed(*offsets)
    asked: list[str] = []

    def after(start: str) -> str:
        asked.append(start)
        return start

    known.next_end(after)
    return asked[0] if asked else None
