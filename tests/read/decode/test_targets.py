"""Each kind of machine has its compiler's, its linker's and pip's name, and the right command."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.tags import compatible_tags, mac_platforms
from packaging.utils import parse_wheel_filename

from kshare.read.decode.kernel_library import file_name
from kshare.read.decode.kernels.targets import TARGETS, ZIG, Target, here, link_commands, named
from kshare.read.decode.layout import SIGNATURES
from tests.support.other_processor import KERNELS, SOURCE, OtherProcessor

ROOT = Path(__file__).parents[3]
ZIG_COMMAND = ["python", "-m", "ziglang"]


@pytest.mark.parametrize(
    ("name", "triple", "cpu", "zig", "tag"),
    [
        (
            "linux-x86_64",
            "x86_64-unknown-linux-gnu",
            "x86-64",
            "x86_64-linux-gnu.2.17",
            "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64",
        ),
        (
            "linux-aarch64",
            "aarch64-unknown-linux-gnu",
            "generic",
            "aarch64-linux-gnu.2.17",
            "py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64",
        ),
        (
            "darwin-arm64",
            "arm64-apple-macosx11.0.0",
            "apple-m1",
            "aarch64-macos.11.0",
            "py3-none-macosx_11_0_arm64",
        ),
        (
            "darwin-x86_64",
            "x86_64-apple-macosx11.0.0",
            "x86-64",
            "x86_64-macos.11.0",
            "py3-none-macosx_11_0_x86_64",
        ),
    ],
)
def test_what_a_machine_is_called(name: str, triple: str, cpu: str, zig: str, tag: str) -> None:
    """No processor is the build machine's: each is the oldest of its kind."""
    target = named(name)
    assert (target.triple, target.cpu, target.zig, target.tag) == (triple, cpu, zig, tag)
    assert here(target.system, target.machine) == target


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_wheels_tag_is_one_that_pip_reads(target: Target) -> None:
    tags = parse_wheel_filename(f"kshare-1.0-{target.tag}.whl")[3]
    assert {tag.platform for tag in tags} == set(target.platforms)
    assert {(tag.interpreter, tag.abi) for tag in tags} == {("py3", "none")}


@pytest.mark.parametrize("python", [(3, 11), (3, 14)])
@pytest.mark.parametrize("machine", ["arm64", "x86_64"])
def test_todays_macs_take_the_wheel(machine: str, python: tuple[int, int]) -> None:
    platforms = list(mac_platforms((15, 2), machine))
    accepted = set(compatible_tags(python, platforms=platforms))
    wheel = f"kshare-1.0-{named(f'darwin-{machine}').tag}.whl"
    assert parse_wheel_filename(wheel)[3] <= accepted


def test_libraries_of_different_machines_have_different_names() -> None:
    """A home directory, which keeps what was made, may be of them all."""
    names = {file_name(target.system, target.machine) for target in TARGETS}
    assert len(names) == len(TARGETS)
    assert file_name(here().system, here().machine) == file_name()


@pytest.mark.parametrize("zig", ["aarch64-macos.11.0", "x86_64-macos.11.0"])
def test_a_macs_library_is_linked_by_zig_alone(zig: str) -> None:
    """Apple's ``ld`` refuses the options of the others, and zig's own ``ld.lld`` makes ELF."""
    (target,) = (target for target in TARGETS if target.zig == zig)
    assert link_commands(target, "/usr/bin/ld", ZIG_COMMAND) == [
        [
            *(*ZIG_COMMAND, "cc", "-target", zig, "-shared", "-s"),
            *("-Wl,-install_name,@rpath/kshare-kernels", "-o"),
        ]
    ]
    assert link_commands(target, "/usr/bin/ld", None) == []


@pytest.mark.parametrize("name", ["linux-x86_64", "linux-aarch64"])
def test_a_linux_library_is_linked_by_either_and_has_no_executable_stack(name: str) -> None:
    options = ["-shared", "--strip-all", "-z", "noexecstack", "-o"]
    by_ld, by_zig = ["/usr/bin/ld", *options], [*ZIG_COMMAND, "ld.lld", *options]
    assert link_commands(named(name), "/usr/bin/ld", ZIG_COMMAND) == [by_ld, by_zig]
    assert link_commands(named(name), "/usr/bin/ld", None) == [by_ld]
    assert link_commands(named(name), None, ZIG_COMMAND) == [by_zig]
    assert link_commands(named(name), None, None) == []


def test_a_processor_without_a_wheel_gets_its_own_kernels_on_linux_alone() -> None:
    target = here("linux", "riscv64")
    assert (target.triple, target.cpu) == ("riscv64-unknown-linux-gnu", "generic")
    for system, machine in (("win32", "AMD64"), ("darwin", "ppc")):
        with pytest.raises(ValueError, match=rf"'{system}-{machine}'; wanted one of linux-x86_64"):
            here(system, machine)


def test_the_build_asks_for_zig_on_a_mac() -> None:
    """There alone: it is 100 MB to fetch. What else asks for it names the same version."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert f"{ZIG}; sys_platform == 'darwin'" in settings["build-system"]["requires"]
    assert ZIG in settings["project"]["optional-dependencies"]["compile"]
    assert ZIG in settings["dependency-groups"]["wheels"]


def test_each_kernel_can_be_called_on_another_processor() -> None:
    """What ``make test-long`` plays with qemu is all that a wheel has, and by the right numbers."""
    assert set(KERNELS) == set(SIGNATURES)
    assert all(hasattr(OtherProcessor, f"_of_{name}") for name in SIGNATURES)
    called = re.findall(r"case (\d+): return (\w+?)_?\(", SOURCE.read_text())
    assert called == [(str(number), name) for number, name in enumerate(KERNELS)]
