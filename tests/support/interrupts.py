"""Interrupts at each moment at which Python raises one, as of Ctrl-C: one after the other."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType

__all__ = ["Interrupt", "interrupt"]


class Interrupt(BaseException):
    """What a signal handler raises."""


@contextmanager
def interrupt(number: int, *modules: ModuleType) -> Iterator[list[str]]:
    """Raise :class:`Interrupt` once, in this thread, amid the functions of some modules.

    Args:
        number: At which moment, from 0 on: where a function begins, or one in C has returned.
        modules: The modules.

    Returns:
        Where it was raised; empty if there are not so many moments.
    """
    files, raised = {module.__file__ for module in modules}, list[str]()
    left = number

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        if event not in ("call", "c_return") or frame.f_code.co_filename not in files or raised:
            return
        if left == 0:
            raised.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            raise Interrupt
        left -= 1

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield raised
    finally:
        sys.setprofile(before)
