"""In which order brokers are asked for what any of them can say, and whose fault a refusal is.

Bootstrap servers come first, then a few brokers that metadata have named: bootstrap servers may be
down for long. A login that a bootstrap server refuses is wrong, and no other broker is asked. One
that another broker refuses is that broker's fault: it may be its listener alone that is set up
otherwise, while nothing needs that broker.
"""

from collections.abc import Callable, Iterable, Iterator

from kshare.errors import AuthenticationError, AuthorizationError
from kshare.wire.protocol.messages import Address

__all__ = ["BrokerSearch"]

_OTHERS_MAX = 2
"""Brokers asked beside the bootstrap servers at a time: an outage of all shows nearly as soon."""


class BrokerSearch:
    """Brokers to ask, one by one, until one answers.

    ::

        for address in search:
            try:
                return ask(address)
            except (AuthenticationError, OSError) as error:
                search.failed(address, error)
        raise ConnectionError(f"no broker answered: {search}")

    ``str()`` of it says what was wrong with each broker.

    Args:
        bootstrap: The bootstrap servers.
        others: Brokers that metadata have named, in the order in which they are preferred.
        paused_until: Until when a broker is left alone: those with the lowest answer are asked
            first. Without it, none is left alone.

    Attributes:
        faults: What was wrong with each broker that was asked. A refused login is a
            ``ConnectionError`` here, as another attempt may find other brokers.
    """

    def __init__(
        self,
        bootstrap: Iterable[Address],
        others: Iterable[Address],
        *,
        paused_until: Callable[[Address], float] = lambda _: 0.0,
    ) -> None:
        self.faults: list[tuple[Address, Exception]] = []
        self._bootstrap = tuple(bootstrap)
        self._others = tuple(sorted(others, key=paused_until)[:_OTHERS_MAX])
        self._paused_until = paused_until

    @property
    def is_beyond_bootstrap(self) -> bool:
        """True if other brokers are asked, too."""
        return bool(self._others)

    def __iter__(self) -> Iterator[Address]:
        return iter(sorted((*self._bootstrap, *self._others), key=self._paused_until))

    def failed(self, address: Address, error: Exception) -> None:
        """A broker did not answer: ask the next one.

        Raises:
            AuthenticationError, AuthorizationError: The error, if a bootstrap server has refused
                the login.
        """
        if isinstance(error, AuthenticationError | AuthorizationError):
            if address in self._bootstrap:
                raise error
            error = ConnectionError(str(error))
        self.faults.append((address, error))

    def __str__(self) -> str:
        return "; ".join(
            f"{host}:{port}: {str(error) or type(error).__name__}"
            for (host, port), error in self.faults
        )
