"""The server of the page: what it answers, to whom, and that it holds one snapshot."""

import http.client
import itertools
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kshare.cli.live.watch import Latest, Watch
from kshare.cli.ui import PageServer, is_loopback
from kshare.core.progress import Progress
from kshare.errors import CheckpointError, KshareError
from tests.support.groups import eventually
from tests.support.looks import ScriptedLooker, made_up


@pytest.fixture
def server() -> Iterator[PageServer]:
    with PageServer("127.0.0.1", 0) as running:
        running.publish(b'{"lag": 1}')
        thread = threading.Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(
    server: PageServer, path: str, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


def test_the_page_loads_nothing_but_its_own_files(server: PageServer) -> None:
    answer, page = ask(server, "/")
    assert (answer.status, answer.getheader("Content-Type")) == (200, "text/html; charset=utf-8")
    policy = answer.getheader("Content-Security-Policy") or ""
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert b'src="page.js"' in page
    assert b'href="page.css"' in page
    assert b"http" not in page, "no other site"
    assert ask(server, "/page.js")[0].getheader("Content-Type") == "text/javascript; charset=utf-8"
    assert ask(server, "/page.css")[1]
    assert ask(server, "/../server.py")[0].status == 404
    assert ask(server, "/page.html")[0].status == 404


def test_the_page_copies_no_list_for_each_range(server: PageServer) -> None:
    """Of 9,600 ranges that would be 46 million entries, every 2 s."""
    script = ask(server, "/page.js")[1].decode()
    assert ".set(" in script
    assert not re.search(r"\.set\([^;]*\[\.\.\.", script)


def test_a_snapshot_is_sent_once_to_each(server: PageServer) -> None:
    answer, content = ask(server, "/snapshot.json?x=1")
    assert json.loads(content) == {"lag": 1}
    version = answer.getheader("ETag") or ""
    same, nothing = ask(server, "/snapshot.json", If_None_Match=version)
    assert (same.status, nothing) == (304, b"")
    server.publish(b'{"lag": 2}')
    newer, content = ask(server, "/snapshot.json", If_None_Match=version)
    assert (newer.status, json.loads(content)) == (200, {"lag": 2})
    head, nothing = ask(server, "/snapshot.json", "HEAD")
    assert (head.status, head.getheader("Content-Length"), nothing) == (200, "10", b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_changes_nothing(server: PageServer, method: str) -> None:
    assert ask(server, "/snapshot.json", method)[0].status == 501


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "[::2]:80"])
def test_a_name_that_another_site_points_here_gets_nothing(server: PageServer, host: str) -> None:
    answer, content = ask(server, "/snapshot.json", Host=host)
    assert (answer.status, content) == (421, b"")
    for known in ("localhost:8099", "LOCALHOST", "127.0.0.1", "[::1]:1"):
        assert ask(server, "/", Host=known)[0].status == 200


def test_where_it_listens() -> None:
    assert is_loopback("localhost")
    assert is_loopback("127.8.8.8")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("::")
    assert not is_loopback("pod-3")
    with PageServer("127.0.0.1", 0) as first:
        port = first.server_address[1]
        with pytest.raises(KshareError, match=rf"cannot listen at 127.0.0.1:{port} \(.*--port"):
            PageServer("127.0.0.1", port)
        assert first.url == f"http://127.0.0.1:{port}/"
    with PageServer("0.0.0.0", 0) as public:
        assert public.knows_host("any.name")
    with PageServer("0.0.0.0", 0, ["Page.Example"]) as named:
        assert named.knows_host("page.example:8099")
        assert not named.knows_host("any.name")


# -- the one that looks ----------------------------------------------------------------------------


def test_one_look_each_time_however_many_see_it() -> None:
    looker = ScriptedLooker(made_up(Progress.at(1), 9), made_up(Progress.at(4), 9))
    seen: list[Latest] = []
    now = itertools.count(0, 3)
    watch = Watch(looker, 0.01, seen.append, clock=lambda: float(next(now)))
    assert [latest.number for latest in seen] == [1]
    watch.start()
    eventually(lambda: len(seen) > 3)
    watch.close()
    assert looker.is_closed
    assert [latest.number for latest in seen] == list(range(1, len(seen) + 1))
    assert seen[1].snapshot.ranges[0].speed == 1


def test_a_speed_is_by_the_time_at_which_progress_was_read() -> None:
    """The first look takes long, after that: connections are opened, parked keys are read."""
    looks = [
        replace(made_up(Progress.at(done), 9), read_at=float(read_at))
        for done, read_at in ((1, 0), (7, 6))
    ]
    now = iter([5.0, 6.5])
    watch = Watch(ScriptedLooker(*looks), 1.0, clock=lambda: next(now))
    assert watch.again().snapshot.ranges[0].speed == 1
    watch.close()


def test_a_look_that_fails_keeps_the_last() -> None:
    looks = (made_up(Progress.at(1), 9), CheckpointError("half a file"), made_up(Progress.at(2), 9))
    watch = Watch(ScriptedLooker(*looks), 1.0)
    failed = watch.again()
    assert (failed.fault, failed.snapshot.ranges[0].position) == ("half a file", 1)
    assert watch.again().fault is None
    watch.close()


def test_the_first_look_says_why_there_is_nothing_to_see() -> None:
    looker = ScriptedLooker(CheckpointError("there is no such directory"))
    with pytest.raises(CheckpointError, match="no such directory"):
        Watch(looker, 1.0)
    assert looker.is_closed


def test_an_error_of_our_own_is_seen_too(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ScriptedLooker):
        def look(self):  # type: ignore[no-untyped-def]
            if self.sights:
                return self.sights.pop()
            raise ZeroDivisionError

    watch = Watch(Broken(made_up(Progress.at(1), 9)), 0.01)
    watch.start()
    eventually(lambda: watch.latest.fault)
    watch.close()
    assert watch.latest.fault == "ZeroDivisionError, see the log"
    assert "a look has failed" in caplog.text
