"""``kshare verifiable-consumer``, as a process of a test."""

from kshare.cli import main as kshare


def main(*arguments: str) -> int:
    """Run it, and return its exit code."""
    return kshare(["verifiable-consumer", *arguments])
