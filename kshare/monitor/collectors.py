"""The collector that a registry of prometheus-client has, and whose metrics it shows."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakSet

if TYPE_CHECKING:  # an optional extra: who has a registry has it
    from prometheus_client import CollectorRegistry
    from prometheus_client.registry import Collector

__all__ = ["Collectors", "Measured"]

CollectorT = TypeVar("CollectorT", bound="Collector")
MeasuredT = TypeVar("MeasuredT")


class Collectors(Generic[CollectorT]):
    """One collector for each registry. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: WeakKeyDictionary[CollectorRegistry, CollectorT] = WeakKeyDictionary()

    def of(self, registry: "CollectorRegistry", make: Callable[[], CollectorT]) -> CollectorT:
        """Return a registry's collector; make and register it if it has none."""
        with self._lock:
            collector = self._of.get(registry)
            if collector is None:
                collector = make()
                registry.register(collector)
                self._of[registry] = collector
            return collector


class Measured(Generic[MeasuredT]):
    """The objects whose metrics a collector shows, as long as they live. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: WeakSet[MeasuredT] = WeakSet()

    def add(self, measured: MeasuredT) -> None:
        """Show one more object."""
        with self._lock:
            self._objects.add(measured)

    def all(self) -> list[MeasuredT]:
        """Return those that live, in any order."""
        with self._lock:
            return list(self._objects)
