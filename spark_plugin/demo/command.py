"""The arguments of ``kshare demo``. :mod:`spark_plugin.demo.run` runs it.

Cost: argparse only; the demo is imported when it runs.
"""

import argparse
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Final

__all__ = ["add_to"]

_DEMOS: Final = {
    "--consumer": ("spark_plugin.demo.consumers", "run_consumers"),
    "--group": ("spark_plugin.demo.consumers", "run_group"),
    "--handlers": ("spark_plugin.demo.handlers_demo", "run_handlers"),
}
_SECONDS: Final = 120.0
# They end by themselves, on a slow machine later; a test of them judges no speed.
_SECONDS_WITHOUT_SPARK: Final = 900.0


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the command to the program's parser."""
    demo = commands.add_parser(
        "demo",
        help="read one partition with several tasks, and check the order of every key",
        description="Read one Kafka partition with several Spark tasks, each a range of key "
        "hashes, show their progress, and check at the end that nothing was lost, duplicated or "
        "out of order. Needs Java; without --bootstrap-servers it starts its own broker. Exit "
        "code 0: everything is in order; 1: it is not, or the demo could not run.",
    )
    demo.add_argument(
        "--bootstrap-servers",
        metavar="HOST:PORT",
        help="a real cluster (PLAINTEXT); without --topic, the demo creates a topic and deletes it",
    )
    demo.add_argument("--topic", help="an existing topic of that cluster; it is only read")
    demo.add_argument(
        "--records",
        type=_positive_int,
        default=None,
        metavar="N",
        help="records to produce (default 200,000), or with --topic to read (default: all)",
    )
    demo.add_argument(
        "--key-ranges", type=_positive_int, default=4, metavar="K", help="per partition (default 4)"
    )
    demo.add_argument(
        "--seconds",
        type=_positive_float,
        metavar="S",
        help="stop reading after this time (default 120; demos without Spark end by themselves, "
        "and give up after 900)",
    )
    demo.add_argument(
        "--consumer",
        action="store_true",
        help="without Spark and Java: two processes of a group share the partition, one is killed",
    )
    demo.add_argument(
        "--group",
        action="store_true",
        help="without Spark and Java: four processes of a group share the partition; some are "
        "killed, others join",
    )
    demo.add_argument(
        "--handlers",
        action="store_true",
        help="without Spark and Java: a slow handler runs for many keys at a time; one key fails",
    )
    demo.set_defaults(run=partial(_run, demo))


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    if arguments.topic and not arguments.bootstrap_servers:
        parser.error("--topic needs --bootstrap-servers: the embedded broker has its own topic")
    flags = [flag for flag in _DEMOS if getattr(arguments, flag.removeprefix("--"))]
    if len(flags) > 1:
        parser.error(f"{' and '.join(flags)} are {len(flags)} demos: give one")
    if flags:
        (flag,) = flags
        if arguments.topic:
            parser.error(f"{flag} makes a topic of its own: leave out --topic")
        # Arrow and the test kit take a while to import.
        module, name = _DEMOS[flag]
        run_demo: Callable[..., int] = getattr(import_module(module), name)
        say = partial(print, flush=True)
        seconds = arguments.seconds or _SECONDS_WITHOUT_SPARK
        return run_demo(arguments.bootstrap_servers, arguments.records, seconds, say)
    # Spark and Arrow take a second to import
    from spark_plugin.demo.run import DemoOptions, run  # noqa: PLC0415

    return run(
        DemoOptions(
            bootstrap_servers=arguments.bootstrap_servers,
            topic=arguments.topic,
            records=arguments.records,
            key_ranges=arguments.key_ranges,
            seconds_max=arguments.seconds or _SECONDS,
        )
    )


def _positive_int(text: str) -> int:
    try:
        number = int(text.replace(",", "").replace("_", ""))
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


def _positive_float(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number
