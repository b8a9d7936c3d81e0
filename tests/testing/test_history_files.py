"""``integration.check_history``: files, what cannot be read, and the verdict."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from integration.check_history import main

WHERE = {"topic": "orders", "partition": 0}
PARTS = [{**WHERE, "hashes": [[0, 2**63]]}]
RIGHT: list[dict[str, Any]] = [
    {"type": "start", **WHERE, "offset": 1},
    {"type": "sent", **WHERE, "offset": 0, "key": "before the start"},
    {"type": "sent", **WHERE, "offset": 1, "key": "a"},
    {"type": "sent", **WHERE, "offset": 2, "key": {"hex": "00ff"}, "transaction": "t"},
    {"type": "sent", **WHERE, "offset": 3, "key": "a", "outcome": "aborted", "transaction": "u"},
    {"type": "assigned", "process": "m", "time": 1, "partitions": PARTS},
    {"type": "received", "process": "m", "time": 2, **WHERE, "offset": 1, "key": "a"},
    {"type": "received", "process": "m", "time": 3, **WHERE, "offset": 2, "key": {"hex": "00ff"}},
    {"type": "committed", "process": "m", "time": 4, **WHERE, "below": 3},
    {"type": "closing", "process": "m", "time": 5},
    {"type": "revoked", "process": "m", "time": 6, "partitions": PARTS},
]


def write(folder: Path, *lines: object, name: str = "history.jsonl") -> str:
    file = folder / name
    text = (each if isinstance(each, str) else json.dumps(each) for each in lines)
    file.write_text("\n".join(text) + "\n")
    return str(file)


def test_a_right_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([write(tmp_path, *RIGHT, "")]) == 0
    assert capsys.readouterr().out == ("2 records received by 1 process; 4 written; 0 anomalies\n")


def test_anomalies_are_shown_by_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = {"type": "received", "process": "n", "time": 9, **WHERE, "offset": 1, "key": "a"}
    assert main([write(tmp_path, *RIGHT, again)]) == 1
    shown = capsys.readouterr().out
    assert "1 x duplicate (" in shown
    assert "n has received offset 1 of orders-0, key b'a', 0.000 s after m knew" in shown
    assert main(["--json", write(tmp_path, *RIGHT, again)]) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert row["kind"] == "duplicate"


def test_a_reset_and_a_history_that_ends_early(tmp_path: Path) -> None:
    again = {"type": "received", "process": "n", "time": 9, **WHERE, "offset": 1, "key": "a"}
    assert main([write(tmp_path, *RIGHT, {"type": "reset", "time": 8}, again)]) == 0
    plain = {"type": "plain", "process": "n"}
    assert main([write(tmp_path, *RIGHT, plain, again)]) == 0
    more = {"type": "sent", **WHERE, "offset": 9, "key": "a"}
    assert main([write(tmp_path, *RIGHT, more)]) == 1
    assert main(["--partial", write(tmp_path, *RIGHT, more)]) == 0
    back = {"type": "received", "process": "m", "time": 3, **WHERE, "offset": 1, "key": "a"}
    lines = [*RIGHT[:8], back]
    assert main([write(tmp_path, *lines)]) == 1
    assert main(["--no-order", write(tmp_path, *lines)]) == 0


def test_what_verifiable_clients_print(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file for each; what is not about records, or no JSON object of theirs, is passed over."""
    sent = [
        {"name": "producer_send_success", **WHERE, "offset": n, "key": None, "value": f"{n}"}
        for n in range(2)
    ]
    producer = write(tmp_path, *sent, {"name": "producer_send_error", "key": None}, name="p")
    consumed = [
        {"timestamp": 1, "name": "startup_complete"},
        {"timestamp": 2, "name": "partitions_assigned", "partitions": [WHERE]},
        {"timestamp": 3, "name": "record_data", **WHERE, "offset": 0, "key": None, "value": "0"},
        {"timestamp": 3, "name": "records_consumed", "count": 1, "partitions": []},
        {
            "timestamp": 4,
            "name": "offsets_committed",
            "success": True,
            "offsets": [WHERE | {"offset": 1}],
        },
        {"timestamp": 4, "name": "offsets_committed", "success": False, "offsets": []},
        {"timestamp": 5, "name": "partitions_revoked", "partitions": [WHERE]},
    ]
    one = write(tmp_path, *consumed, name="c1")
    assert main([producer, one]) == 1
    assert "1 x lost write" in capsys.readouterr().out
    consumed[2] |= {"offset": 1, "value": "1"}
    lines = "\n".join(map(json.dumps, consumed))
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert main([producer, one, "-"]) == 0


def test_all_lines_that_cannot_be_read_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        "{",
        {"type": "seen"},
        {"type": "received", "process": "m", "time": 1, **WHERE, "offset": -1, "key": "a"},
        {"type": "received", "process": "m", "time": 1, **WHERE, "offset": 1, "key": {"hex": "f"}},
        {"type": "committed", "process": "m", "time": 1, **WHERE},
        {"type": "sent", **WHERE, "key": "a"},
        {"type": "sent", **WHERE, "offset": 1, "kay": "a"},
        "[]",
    ]
    assert main([write(tmp_path, *lines)]) == 2
    err = capsys.readouterr().err
    for number in range(1, len(lines) + 1):
        assert f"history.jsonl:{number}: " in err
    assert "kay" in err
    assert main([str(tmp_path / "none")]) == 2
    assert "cannot be read" in capsys.readouterr().err
