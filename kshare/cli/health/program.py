"""Programs that ``kshare doctor`` runs: the user's own Python and Java."""

import subprocess
from collections.abc import Mapping, Sequence

__all__ = ["run_program"]


def run_program(
    command: Sequence[str], environment: Mapping[str, str], *, seconds_max: float
) -> subprocess.CompletedProcess[str]:
    """Run a program, and take what it prints.

    Raises:
        OSError: It cannot be started.
        subprocess.TimeoutExpired: It takes longer; it is ended.
    """
    return subprocess.run(  # noqa: S603 - what the user's environment names
        command,
        capture_output=True,
        text=True,
        timeout=seconds_max,
        check=False,
        env=dict(environment),
    )
