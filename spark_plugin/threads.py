"""Threads of the user's that write with ``format("kshare")``."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["use_in_thread"]


def use_in_thread(spark: "SparkSession") -> None:
    """Let this thread write with ``format("kshare")``, as the thread that made the session does.

    Spark looks a Python data source up in the calling thread's active session, and a new thread of
    Python has none: there ``write`` and ``writeStream`` say ``DATA_SOURCE_NOT_FOUND``. Call it
    once in each thread, for example ``ThreadPoolExecutor(2, initializer=use_in_thread,
    initargs=(spark,))``. With Spark Connect nothing is needed, and nothing is done.

    Args:
        spark: The session; in ``foreachBatch`` that of the batch, ``batch.sparkSession``.
    """
    session = getattr(spark, "_jsparkSession", None)  # none in a session of Spark Connect
    if session is not None:
        # Spark's own createDataFrame makes the same call.
        type(spark)._get_j_spark_session_class(spark._jvm).setActiveSession(session)  # noqa: SLF001
