"""The module that Spark discovers: its name, and what it holds."""

import importlib
import pkgutil

from spark_plugin import KshareDataSource


def test_spark_finds_the_source_by_the_modules_prefix() -> None:
    """Spark imports each top-level module named ``pyspark_*`` and takes its ``DefaultSource``."""
    found = [module.name for module in pkgutil.iter_modules() if module.name.startswith("pyspark_")]
    assert "pyspark_kshare" in found
    source = importlib.import_module("pyspark_kshare").DefaultSource
    assert source is KshareDataSource
    assert source.name() == "kshare"
