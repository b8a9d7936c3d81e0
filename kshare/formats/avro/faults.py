"""The fault of a record, in words: from the kernel's codes, for bad records alone."""

from typing import Any, Final

from kshare.formats.avro.program import Program
from kshare.read.decode import avro_step as step

__all__ = ["reason"]

_REASONS: Final = {
    step.CUT_SHORT: "is cut short",
    step.NUMBER: "has a number of more than ten bytes",
    step.NEGATIVE: "has a length of {value}",
    step.INT_RANGE: "has {value} where an int is wanted",
    step.NO_BOOLEAN: "has {value} where a boolean is wanted",
    step.NO_BRANCH: "has type {value} of a union of {two}",
    step.NO_SYMBOL: "has symbol {value} of an enum of {two}",
    step.OTHER_SYMBOL: "has the symbol {symbol}, which the reader's schema lacks",
    step.NO_TEXT: "is not UTF-8",
    step.DIGITS: "does not fit into {detail}",
    step.TIME: "has {value} ms, which microseconds in 64 bits do not reach",
    step.TOO_DEEP: f"is nested more than {step.STACK} deep",
    step.TOO_MANY: "has more items than a record of this size may have",
    step.REFUSED: "{detail}",
    step.OUTSIDE: "lies outside of its column, or has no known schema",
}


def reason(program: Program, number: int, code: int, value: int) -> str:
    """Return the rest of a sentence about a field.

    Args:
        program: The steps.
        number: The step at which the record is bad.
        code: What is wrong, of :mod:`kshare.read.decode.avro_step`.
        value: The number that is wrong, where the code has one.
    """
    detail: Any = program.details.get(number, "")
    symbol = detail[value] if code == step.OTHER_SYMBOL else ""
    two = program.steps[number][4]
    return _REASONS[code].format(value=value, two=two, detail=detail, symbol=symbol)
