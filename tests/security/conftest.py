"""Certificates that the tests of security share: an authority, a server's, a client's."""

import pytest

from tests.support.certificates import Pair, make


@pytest.fixture(scope="module")
def authority() -> Pair:
    return make("authority", authority=True)


@pytest.fixture(scope="module")
def middle(authority: Pair) -> Pair:
    return make("middle", authority, authority=True)


@pytest.fixture(scope="module")
def server_pair(authority: Pair) -> Pair:
    return make("localhost", authority)


@pytest.fixture(scope="module")
def client(middle: Pair) -> Pair:
    return make("client", middle)
