"""``kshare ui``: a web page that shows a query or a group."""

import argparse
import json
import sys

from kshare.cli.live.look import looker
from kshare.cli.live.server import PageServer, is_loopback
from kshare.cli.live.snapshot import as_json
from kshare.cli.live.watch import Latest, Watch

__all__ = ["run"]


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Serve until the user ends it.

    Raises:
        SystemExit: A group without a cluster, or a port that there is not (code 2).
        KshareError: The port cannot be had, or the first look has failed.
    """
    if not 0 <= arguments.port < 1 << 16:
        parser.error(f"--port {arguments.port}: wanted 0 to 65535")
    with PageServer(arguments.host, arguments.port) as server:

        def publish(latest: Latest) -> None:
            fields = as_json(latest.snapshot, fault=latest.fault, has_picture=True)
            server.publish(json.dumps({"interval": arguments.interval, **fields}).encode())

        watch = Watch(looker(parser, arguments), arguments.interval, publish)
        try:
            watch.start()
            if not is_loopback(arguments.host):
                sys.stderr.write(
                    f"warning: {arguments.host} is not only this machine, and the page has no "
                    "login: who reaches it sees topics, members and parked keys\n"
                )
            sys.stdout.write(f"{server.url} shows it; Ctrl+C ends\n")
            sys.stdout.flush()
            server.serve_forever()
        finally:
            watch.close()
    return 0
