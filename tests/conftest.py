"""What all unit tests share."""

import pytest
from hypothesis import settings

# No test depends on how fast the machine is, and the same commit has the same result each time.
settings.register_profile("kshare", deadline=None, derandomize=True)
# New examples at each run, and more of them: pytest --hypothesis-profile=soak tests
settings.register_profile("soak", deadline=None, max_examples=1_000)
# Enough examples to run each line of the core, for its coverage.
settings.register_profile("coverage", deadline=None, derandomize=True, max_examples=20)
settings.load_profile("kshare")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of membership first: they wait most, and at the end nothing would run beside them."""
    items.sort(key=lambda item: "membership" not in item.path.parts)
