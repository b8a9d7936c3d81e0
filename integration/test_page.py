"""The page of ``kshare ui`` in a browser: of a recorded query, and of a group on a real broker."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from integration.browser import chromium
from integration.kafka import KafkaBroker
from kshare.cli.live.snapshot import as_json
from kshare.cli.live.watch import SpeedMeter
from kshare.cli.ui import PageServer
from kshare.group import KeySharedConsumer
from kshare.testing import Record
from tests.support.looks import recorded

MARKUP = "<img src=x onerror=alert(1)>"
NOTHING = "\u2013"
ROWS = "#ranges tbody tr"
expect.set_options(timeout=60_000)  # for what never comes; else 5 s


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page on which nothing may fail: no script, no request, no rule about what is loaded."""
    opened = browser.new_page(viewport={"width": 1200, "height": 900}, device_scale_factor=1)
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda said: faults.append(said.text) if is_fault(said) else None)
    opened.on("dialog", lambda dialog: faults.append(dialog.message))
    yield opened
    opened.close()
    assert faults == []


def is_fault(said: ConsoleMessage) -> bool:
    """Whether the browser complains; not of a server that has ended."""
    return said.type == "error" and not said.text.startswith("Failed to load resource")


@pytest.fixture
def server() -> Iterator[PageServer]:
    with PageServer("127.0.0.1", 0) as running:
        threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True).start()
        yield running
        running.shutdown()


def column(page: Page, number: int) -> list[str]:
    return page.locator(f"{ROWS} td:nth-child({number})").all_text_contents()


def colour(page: Page, x: float, y: float) -> list[int]:
    """The colour of the picture at shares of its width and height, both from 0 to 1."""
    found: list[int] = page.evaluate(
        "([x, y]) => { const c = document.querySelector('canvas');"
        "return [...c.getContext('2d').getImageData(x * c.width, y * c.height, 1, 1).data] }",
        [x, y],
    )
    return found[:3]


def test_a_query(page: Page, server: PageServer, tmp_path: Path) -> None:
    first, second = recorded(tmp_path, key=MARKUP.encode(), why=MARKUP, name=MARKUP)

    def publish(look: Any, **more: Any) -> None:
        fields = {**as_json(look, has_picture=True, **more), "interval": 0.1}
        server.publish(json.dumps(fields).encode())

    meter = SpeedMeter()
    publish(meter.measured(first, 0.0))
    page.goto(server.url)
    expect(page.locator(ROWS).first).to_be_visible()
    expect(page.locator("#speed")).to_have_text(NOTHING)
    seen = meter.measured(second, 10.0)
    publish(seen)
    expect(page.locator("#facts")).to_have_text("batch 6 planned, 5 committed")
    expect(page.locator("#speed")).not_to_have_text(NOTHING)
    expect(page.locator("#name")).to_have_text(f"query {MARKUP}")
    # Ranges, in the order that was asked for.
    assert len(column(page, 1)) == len(seen.ranges)
    assert column(page, 2)[0].startswith("0.00 % to ")
    for button, key in (("lag", "lag"), ("speed", "speed"), ("position", "position")):
        page.click(f"button[data-sort={button}]")
        for descends in (key == "lag", key != "lag"):
            number = {"position": 4, "lag": 5, "speed": 6}[key]
            values = [float(text.replace(",", "")) for text in column(page, number)]
            assert values == sorted(values, reverse=descends), (key, descends)
            heading = page.locator("th[aria-sort]")
            expect(heading).to_have_attribute(
                "aria-sort", "descending" if descends else "ascending"
            )
            page.click(f"button[data-sort={button}]")
    # A parked key, and text of others that would be markup.
    expect(page.locator("#parked tbody td").nth(1)).to_have_text(MARKUP)
    expect(page.locator("#parked tbody td").nth(5)).to_have_text(MARKUP)
    assert page.locator("main img").count() == 0
    expect(page.locator("#members-section")).to_be_hidden()
    # The picture: what is below the stable offset is processed, the upper right is pending.
    processed, pending = [0x4C, 0x78, 0xA8], [0xF1, 0xEC, 0xE2]
    assert colour(page, 0.02, 0.5) == processed
    assert colour(page, 0.99, 0.05) == pending
    # Nobody renews it.
    publish(seen, fault="no broker answers")
    expect(page.locator("#faults li")).to_have_text("Not renewed: no broker answers")


def test_a_query_that_may_have_stopped_on_a_narrow_screen(
    page: Page, server: PageServer, tmp_path: Path
) -> None:
    _, look = recorded(tmp_path)
    unseen = replace(look.parked[0], positions={})
    still = replace(
        look, is_still=True, warnings=("no change for 12 min: stopped?",), parked=(unseen,)
    )
    server.publish(json.dumps({**as_json(still, has_picture=True), "interval": 0.1}).encode())
    page.clock.set_fixed_time(datetime.fromtimestamp(look.at + 720, UTC))
    page.goto(server.url)
    expect(page.locator("#faults li.warning")).to_have_text("no change for 12 min: stopped?")
    expect(page.locator("#at")).to_have_text("12 min ago")
    expect(page.locator("#parked tbody td").nth(2)).to_have_text("not seen by the query yet")
    expect(page.locator("#parked tbody td").nth(3)).to_have_text("204 days ago")
    expect(page.locator(".percent span")).to_have_text(["0 %", "25 %", "50 %", "75 %", "100 %"])
    # Nothing is drawn as read, and red is the one range that is far behind the others.
    expect(page.locator(".bar:not(.still)")).to_have_count(0)
    expect(page.locator("tr.outlier")).to_have_count(1)
    expect(page.locator("tr.outlier td").nth(4)).to_have_text("280,792")
    expect(page.locator(".strip .outlier")).to_have_count(1)
    expect(page.locator(".bar").first).to_be_visible()
    page.set_viewport_size({"width": 420, "height": 800})
    expect(page.locator(".bar").first).to_be_hidden()
    for number in (4, 5):
        expect(page.locator(f"{ROWS} td:nth-child({number})").first).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.documentElement.scrollWidth") == 420
    height = page.locator("#parked tbody tr").evaluate("row => row.clientHeight")
    assert height < 80


def test_the_server_ends(page: Page, server: PageServer, tmp_path: Path) -> None:
    look = replace(recorded(tmp_path)[0], warnings=("topic orders is not there",))
    server.publish(json.dumps({**as_json(look, has_picture=True), "interval": 0.1}).encode())
    page.goto(server.url)
    expect(page.locator("#faults li.warning")).to_have_text("topic orders is not there")
    page.route("**/snapshot.json", lambda route: route.fulfill(status=404))
    expect(page.locator("#faults")).to_contain_text("kshare ui does not answer")
    assert page.locator(ROWS).count() == len(look.ranges), "the last look stays"


def test_a_group_on_a_broker(page: Page, broker: KafkaBroker, topic: str) -> None:
    broker.produce(topic, [Record(b"key-%d" % (n % 40), b"v") for n in range(500)])
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": topic,
        "client.id": "biller",
        "auto.offset.reset": "earliest",
    }
    with KeySharedConsumer(config) as consumer:
        consumer.subscribe([topic])
        assert len(consumer.consume(500, timeout=120)) == 500
        consumer.commit()
        arguments = ["--group", topic, "--bootstrap-servers", broker.bootstrap_servers]
        with subprocess.Popen(
            [sys.executable, "-m", "kshare", "ui", "--port", "0", "--interval", "0.2", *arguments],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                with closing(process.stdout):
                    page.goto(process.stdout.readline().split(" ")[0])
                expect(page.locator("#members tbody tr")).to_have_count(1)
                expect(page.locator("#members tbody")).to_contain_text("biller")
                expect(page.locator("#lag")).to_have_text("0")
                broker.produce(topic, [Record(b"key", b"v")] * 7)
                expect(page.locator("#lag")).to_have_text("7")
            finally:
                process.terminate()
