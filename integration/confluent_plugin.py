"""A plug-in of pytest that has ``confluent_kafka.Consumer`` be a ``KeySharedConsumer``.

See :mod:`integration.confluent_tests`. What the tests leave out or set beside the point of each is
made fit: ``bootstrap.servers``, which kshare always needs, and configurations that kshare refuses.
"""

import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final
from unittest.mock import MagicMock

import confluent_kafka
from confluent_kafka import cimpl

from kshare.group import KeySharedConsumer

_STANDINS: Final = ("trivup", "confluent_kafka.avro", "confluent_kafka.schema_registry")
"""Packages that the tests import and do without: brokers in containers, schemas."""


class _Standins(MetaPathFinder, Loader):
    """Finds a stand-in for each module of these packages."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if not name.startswith(_STANDINS):
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> Any:
        module = MagicMock(name=spec.name)
        module.__path__, module.__all__ = [], []
        return module

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


sys.meta_path.insert(0, _Standins())
_REFUSED: Final = {"enable.auto.offset.store", "key.deserializer", "value.deserializer"}


class Consumer(KeySharedConsumer):
    """The consumer under test."""

    def __init__(self, config: Any = None, **kwargs: Any) -> None:
        if isinstance(config, dict):
            given = {name: value for name, value in config.items() if name not in _REFUSED}
            config = {"bootstrap.servers": os.environ["BROKERS"], **given}
        super().__init__(config, **kwargs)


for module in (confluent_kafka, cimpl):
    module.Consumer = Consumer  # type: ignore[attr-defined]
confluent_kafka.DeserializingConsumer = Consumer  # type: ignore[assignment, misc]
