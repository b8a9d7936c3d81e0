"""Typed rows in Spark: the columns of a query.

Imported by queries with ``valueFormat`` or ``keyFormat`` alone.
"""

from collections.abc import Sequence
from secrets import token_hex

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType

from kshare.formats.schemas import ReaderSchemas, found_schemas
from kshare.formats.typed_columns import column_types
from kshare.options import SourceOptions

__all__ = ["find_schemas", "spark_types"]


def find_schemas(options: SourceOptions) -> ReaderSchemas:
    """Find the reader schemas that options with typed rows ask for.

    Raises:
        OptionsError: They cannot be read.
        SchemaRegistryError: The registry does not answer, or refuses.
    """
    assert options.typed_rows is not None
    return found_schemas(options.typed_rows, options.kafka, token_hex(8))


def spark_types(schemas: ReaderSchemas, names: Sequence[str]) -> dict[str, DataType]:
    """Spark's types of the columns that typed rows change or add, of those that are named."""
    return {
        # Before 4.3 a time without a zone is taken for one with a zone, if nothing is said.
        name: from_arrow_type(kind, prefer_timestamp_ntz=True)
        for name, kind in column_types(schemas, names).items()
    }
