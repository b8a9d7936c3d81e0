"""Wheels for other machines than this one, and what is refused of a wheel."""

import hashlib
import shutil
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.wheels import WheelError, build, check, examined
from kshare.read.decode.kernel_library import sealed
from kshare.read.decode.kernels.targets import TARGETS, Target, named

# It needs the packages of ``make wheels``.
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels of all machines, in one folder, as pip finds them."""
    folder = tmp_path_factory.mktemp("wheels")
    return {target.name: build(target, folder) for target in TARGETS}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_each_machine_has_its_wheel(wheels: dict[str, Path], target: Target) -> None:
    assert check(wheels[target.name], target).startswith(wheels[target.name].name)


Change = Callable[[dict[str, bytes]], None]


def _rewritten(wheel: Path, folder: Path, change: Change) -> Path:
    """The same wheel with other files; its list of files is right."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    (record,) = (name for name in files if name.endswith("/RECORD"))
    lines = [f"{record},,"]
    for name, data in files.items():
        digest = urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines += [] if name == record else [f"{name},sha256={digest},{len(data)}"]
    files[record] = "\n".join(lines).encode()
    changed = folder / wheel.name
    with zipfile.ZipFile(changed, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return changed


def _library(files: dict[str, bytes]) -> str:
    (name,) = (name for name in files if "/kernels-" in name)
    return name


def _put(files: dict[str, bytes], data: bytes) -> None:
    name = _library(files)
    files[name] = sealed(Path(name).name, data)


def _cut(files: dict[str, bytes]) -> None:
    files[_library(files)] = files[_library(files)][:-1]


def _change_a_page(files: dict[str, bytes]) -> None:
    data = bytearray(files[_library(files)][:-32])
    data[0x3000] ^= 1
    _put(files, bytes(data))


def _tag(files: dict[str, bytes]) -> None:
    (name,) = (name for name in files if name.endswith("/WHEEL"))
    files[name] = files[name].replace(b"arm64", b"universal2")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_cut, "no digest behind it"),
        (_change_a_page, "its signature is False"),
        (_tag, "its tags are"),
        (lambda files: _put(files, b"#!/bin/sh"), "neither ELF nor Mach-O"),
    ],
    ids=["cut", "page", "tag", "script"],
)
def test_a_wrong_wheel_is_refused(
    wheels: dict[str, Path], tmp_path: Path, change: Change, says: str
) -> None:
    target = named("darwin-arm64")
    with pytest.raises(WheelError, match=says):
        check(_rewritten(wheels[target.name], tmp_path, change), target)


def test_the_library_of_another_machine_is_refused(wheels: dict[str, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(wheels["darwin-x86_64"]) as archive:
        other = archive.read(_library(dict.fromkeys(archive.namelist(), b"")))[:-32]
    assert examined(other).form == ("MachO", "X86_64")
    target = named("darwin-arm64")
    wheel = _rewritten(wheels[target.name], tmp_path, lambda files: _put(files, other))
    with pytest.raises(WheelError, match=r"is for .*X86_64"):
        check(wheel, target)


def test_a_wheel_whose_list_of_files_is_wrong_is_refused(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    target = named("linux-aarch64")
    wheel = tmp_path / wheels[target.name].name
    shutil.copy(wheels[target.name], wheel)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("kshare/more.py", "")
    with pytest.raises(WheelError, match=r"RECORD: differs in kshare/more.py"):
        check(wheel, target)
