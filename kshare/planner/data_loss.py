"""``failOnDataLoss``: lost records are an error or a warning with the same words, never silence."""

import logging
from collections.abc import Iterable

from kshare.core.losses import Loss
from kshare.errors import DataLossError

__all__ = ["report_losses"]

_log = logging.getLogger("kshare.planner")


def report_losses(losses: Iterable[Loss], *, fail: bool) -> None:
    """Log losses, or raise the first.

    Args:
        losses: What is lost.
        fail: ``failOnDataLoss``.

    Raises:
        DataLossError: There is a loss, and ``fail`` is true.
    """
    for loss in losses:
        if fail:
            raise DataLossError(
                f"{loss.text}. If losing records is acceptable, set failOnDataLoss to false.",
                topic=loss.partition.topic,
                partition=loss.partition.partition,
                wanted=loss.wanted,
                available=loss.available,
            )
        _log.warning("%s. Going on, since failOnDataLoss is false.", loss.text)
