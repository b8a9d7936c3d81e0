"""Checkpoints in stores, and sources with names: what is read and written is as of a local one."""

import itertools
import json
import os
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import pytest

from kshare.cli.checkpoint import drop_ranges
from kshare.core.checkpoint import EXTRA_KEY, BatchOffsets, decode, encode
from kshare.core.hashing import HASH_SPACE, HashRange
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, TopicPartition
from kshare.core.region import Rectangle
from kshare.errors import CheckpointError
from kshare.monitor.offset_log import OffsetLog, open_folder
from kshare.monitor.status import read_checkpoint
from tests.support.checkpoints import write_checkpoint

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)
LOW = HashRange(0, HASH_SPACE // 2)
AHEAD = Progress.of(10, [Rectangle(OffsetRange(10, 20), LOW)])
FURTHER = Progress.of(10, [Rectangle(OffsetRange(10, 30), LOW)])
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
_numbers = itertools.count()


def in_memory(folder: Path) -> str:
    uri = f"memory://bucket/checkpoint-{next(_numbers)}"
    fsspec.filesystem("memory").put(str(folder), uri, recursive=True)
    return uri


def as_local_store(folder: Path) -> str:
    """The same files, through fsspec."""
    return f"local://{folder}"


STORES: dict[str, Callable[[Path], str]] = {"memory": in_memory, "local": as_local_store}


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest) -> Callable[[Path], str]:
    return STORES[request.param]


def test_a_checkpoint_is_read(tmp_path: Path, store: Callable[[Path], str]) -> None:
    write_checkpoint(tmp_path, [BatchOffsets({T0: AHEAD}), BatchOffsets({T0: FURTHER})], 0)
    here, there = read_checkpoint(str(tmp_path)), read_checkpoint(store(tmp_path))
    assert (there.planned, there.committed) == (here.planned, here.committed) == (1, 0)
    assert there.sources == here.sources
    assert there.sources[0].done[T0] == AHEAD


@pytest.mark.parametrize("committed", [0, 1])
def test_ranges_are_dropped(tmp_path: Path, store: Callable[[Path], str], committed: int) -> None:
    local, other = tmp_path / "local", tmp_path / "other"
    for folder in (local, other):
        folder.mkdir()
        write_checkpoint(
            folder, [BatchOffsets({T0: AHEAD}), BatchOffsets({T0: FURTHER})], committed
        )
    uri = store(other)
    here = drop_ranges(str(local), now=lambda: NOW)
    there = drop_ranges(uri, now=lambda: NOW)
    assert (there.dropped, there.replaced) == (here.dropped, here.replaced)
    opened = open_folder(uri)
    for file in sorted(file for file in local.rglob("*") if file.is_file()):
        assert opened.read(str(file.relative_to(local))) == file.read_text()
    assert opened.names("offsets-before-drop-ranges-20261122T120000.000000Z")
    assert not opened.exists("offsets/.1.crc")
    assert there.log.written_at > 0


def test_nothing_there(store: Callable[[Path], str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"://.* no such directory|no batch is planned yet"):
        read_checkpoint(store(tmp_path / "empty"))


def test_a_file_that_cannot_be_read_names_its_uri(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, [BatchOffsets({T0: AHEAD})], 0)
    uri = in_memory(tmp_path)
    fsspec.filesystem("memory").pipe_file(f"{uri}/offsets/0", b"\xff\xfe")
    with pytest.raises(CheckpointError, match=f"{uri}/offsets/0: not a file of Spark"):
        read_checkpoint(uri)


# -- sources with names ---------------------------------------------------------------------------


def line(name: str, offsets: BatchOffsets | str) -> str:
    return f"{name}:{offsets if isinstance(offsets, str) else json.dumps(encode(offsets))}"


def named(folder: Path, *batches: list[str], committed: int) -> str:
    """A checkpoint as Spark 4.3 writes it for sources with names."""
    return write_checkpoint(folder, batches, committed, version="v2")


def sources_in(folder: Path, batch: int) -> dict[str, Any]:
    text = (folder / "offsets" / str(batch)).read_text()
    return dict(entry.split(":", 1) for entry in text.split("\n")[2:])


def test_named_sources_are_read(tmp_path: Path) -> None:
    first = [
        line("orders", BatchOffsets({T0: AHEAD})),
        line("a_b", BatchOffsets({U0: Progress.at(5)})),
    ]
    named(tmp_path, first, first[::-1], committed=1)
    read = read_checkpoint(str(tmp_path))
    assert [(s.number, s.name, s.done) for s in read.sources] == [
        (0, "a_b", {U0: Progress.at(5)}),
        (1, "orders", {T0: AHEAD}),
    ]


def test_sources_are_known_by_name_in_the_batch_before(tmp_path: Path) -> None:
    """In other lines, with one that is gone and one that is new."""
    before = [
        line("z", BatchOffsets({U0: Progress.at(9)})),
        line("orders", BatchOffsets({T0: AHEAD})),
    ]
    after = [line("orders", BatchOffsets({T0: FURTHER})), line("new", '{"logOffset":3}')]
    named(tmp_path, before, after, committed=0)
    (source,) = read_checkpoint(str(tmp_path)).sources
    assert (source.name, source.done) == ("orders", {T0: AHEAD})


def test_ranges_of_named_sources_are_dropped(tmp_path: Path) -> None:
    other = line("files", '{"logOffset":3}')
    before = [line("orders", BatchOffsets({T0: AHEAD})), other]
    after = [other, line("orders", BatchOffsets({T0: FURTHER}))]
    named(tmp_path, before, after, committed=0)
    result = drop_ranges(str(tmp_path), now=lambda: NOW)
    assert [dropped.topic_partition for dropped in result.dropped] == [T0]
    for batch in (0, 1):
        sources = sources_in(tmp_path, batch)
        assert sources["files"] == '{"logOffset":3}'
        assert EXTRA_KEY not in sources["orders"]
        assert decode(sources["orders"]).progress == {T0: Progress.at(10)}
    assert (tmp_path / "offsets" / "1").read_text().startswith("v2\n")


def test_a_source_without_an_offset_has_a_line(tmp_path: Path) -> None:
    named(tmp_path, [line("orders", BatchOffsets({T0: AHEAD})), "other:-"], committed=0)
    assert [source.name for source in read_checkpoint(str(tmp_path)).sources] == ["orders"]


def test_batches_of_both_versions_are_not_mixed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, [BatchOffsets({T0: AHEAD})], None)
    text = "\n".join(["v2", "{}", line("orders", BatchOffsets({T0: FURTHER}))])
    (tmp_path / "offsets" / "1").write_text(text)
    with pytest.raises(CheckpointError, match=r"names, or lost them.* batch 1 first"):
        drop_ranges(str(tmp_path))
    assert OffsetLog.open(str(tmp_path)).planned == 1


# -- who may read what is replaced ----------------------------------------------------------------


@pytest.fixture
def narrow_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def with_readers(folder: Path) -> str:
    """A checkpoint with ranges that everybody may read, and a group write."""
    write_checkpoint(folder, [BatchOffsets({T0: AHEAD}), BatchOffsets({T0: FURTHER})], 0)
    (folder / "offsets").chmod(0o755)
    for file in (folder / "offsets").iterdir():
        file.chmod(0o664)
    return str(folder)


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


@pytest.mark.usefixtures("narrow_umask")
def test_who_could_read_a_file_still_can_and_its_copy_too(tmp_path: Path) -> None:
    backup = drop_ranges(with_readers(tmp_path)).backup
    assert isinstance(backup, Path)
    assert mode(backup) == 0o755
    for name in ("0", "1"):
        assert mode(tmp_path / "offsets" / name) == mode(backup / name) == 0o664
    assert not list((tmp_path / "offsets").glob("*.kshare.tmp"))


def test_files_stay_with_the_query_s_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root gives the new files, the copies and their folder to whom the old ones belong."""
    given = set()

    def chown(of: Path | int, *owner: int) -> None:
        given.add((os.stat(of).st_ino, owner))  # noqa: PTH116 - of a descriptor, too

    monkeypatch.setattr(os, "chown", chown)
    backup = drop_ranges(with_readers(tmp_path)).backup
    assert isinstance(backup, Path)
    made = [backup, *backup.iterdir(), *(tmp_path / "offsets" / name for name in ("0", "1"))]
    old = (tmp_path / "offsets").stat()
    assert given == {(path.stat().st_ino, (old.st_uid, old.st_gid)) for path in made}


def test_it_is_said_that_a_file_has_another_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the replaced files: the query reads these. The rest of the command goes on."""
    directory = with_readers(tmp_path)

    def refused(*_: object) -> None:
        raise PermissionError

    owner = os.stat_result((0o100664, 1, 1, 1, 54321, 54321, 1, 1, 1, 1))
    monkeypatch.setattr(os, "chown", refused)
    found = os.stat
    monkeypatch.setattr(Path, "stat", lambda self, **_: owner if self.name == "1" else found(self))
    folder = open_folder(directory)
    folder.replace("offsets/0", "v1")
    assert not caplog.records
    folder.replace("offsets/1", "v1")
    (record,) = caplog.records
    assert f"{tmp_path / 'offsets' / '1'} belonged to user 54321" in record.getMessage()
    assert folder.read("offsets/1") == "v1"


def test_what_a_killed_command_left_is_in_nobody_s_way(tmp_path: Path) -> None:
    """It may be another user's, or a link to somewhere else."""
    directory = with_readers(tmp_path)
    (tmp_path / "other").write_text("stays")
    (tmp_path / "offsets" / ".1.kshare.tmp").symlink_to(tmp_path / "other")
    open_folder(directory).replace("offsets/1", "v1")
    assert (tmp_path / "other").read_text() == "stays"
    assert not (tmp_path / "offsets" / "1").is_symlink()
