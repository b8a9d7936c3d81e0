"""What is random in tests of faults: the same in each run, but for each seed of a soak."""

import os
import random

__all__ = ["SEED", "chance_of"]

SEED = "KSHARE_TEST_SEED"
"""The environment variable with the seed of :mod:`integration.soak`."""


def chance_of(number: int) -> random.Random:
    """Return the generator of a test.

    Args:
        number: The test's own seed, which it has if there is no soak.
    """
    seed = os.environ.get(SEED)
    return random.Random(number if seed is None else f"{seed} {number}")
