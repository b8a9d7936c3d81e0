"""The reader schemas of a query in its checkpoint: which batches had which.

Rows have the columns of the schema that was found when the query was defined. One that is started
again may find another (``latest``, other options): its rows are right, and have other columns. That
is said, once, with what has changed.
"""

import logging
from typing import TYPE_CHECKING

from kshare.core.checkpoint import BatchOffsets

if TYPE_CHECKING:
    from kshare.formats.schemas import ReaderSchemas
    from kshare.options import KafkaConfig

__all__ = ["SchemaPins"]

_log = logging.getLogger("kshare.planner")


class SchemaPins:
    """Compares the reader schemas of now with those of earlier batches.

    Args:
        schemas: Those of now; None: keys and values are bytes.
        kafka: How long to wait for the registry, which knows what has changed.
    """

    def __init__(
        self, schemas: "ReaderSchemas | None" = None, kafka: "KafkaConfig | None" = None
    ) -> None:
        self._schemas = schemas
        self._kafka = kafka
        self._is_compared = False
        self.pins: dict[str, str] = schemas.pins if schemas is not None else {}

    def compare(self, offsets: BatchOffsets) -> None:
        """Say what has changed since a batch, the first time that there was one."""
        if self._is_compared or not offsets.progress:
            return
        self._is_compared = True
        if dict(offsets.schemas) == self.pins:
            return
        # Brings Arrow, which planners for bytes do without.
        from kshare.formats.schema_changes import told_changes  # noqa: PLC0415

        for text in told_changes(self._schemas, offsets.schemas, self._kafka):
            _log.warning(
                "%s. Rows have the columns of now, those of batches that are run again, too. State "
                "that Spark keeps of columns that have changed cannot be used any more: Spark "
                "refuses to start such a query, and it needs a new checkpoint",
                text,
            )
