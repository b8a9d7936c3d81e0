"""Settings of the tests of the core of groups."""

from collections.abc import Iterator

import pytest

from kshare.group.core import open_chunks


@pytest.fixture(autouse=True, scope="package")
def few_whole_chunks() -> Iterator[None]:
    """Chunks of which rows stay open lose their values early: tests have few chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_chunks, "_WHOLE", 1)
        yield
