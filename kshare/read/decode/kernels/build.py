"""From the kernels' source to a shared library.

``python -m kshare.read.decode.kernels.build FILE TARGET`` writes it, for a machine of
:mod:`kshare.read.decode.kernels.targets`. The linker is the machine's ``ld``, or else one of the
package ``ziglang``: not every machine that installs from source has one, and none has all.

Cost: half a minute of CPU time in two processes, of which each takes 200 MB; most of it is numba's.
The first library for a Mac takes zig seven seconds more, as it compiles its own run time then.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Container
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import cfunc, from_dtype, types

from kshare.read.decode.kernels import avro, batch_heads, binary, json, messages, scan, variant
from kshare.read.decode.kernels.native import FLAGS
from kshare.read.decode.kernels.targets import ZIG, Target, here, link_commands, named
from kshare.read.decode.layout import SIGNATURES

__all__ = ["compile_object", "kernel_code", "link", "linkers"]

_SOURCES: dict[str, Any] = {
    "copy_headers": binary.copy_headers,
    "decode_avro": avro.decode_avro,
    "decode_json": json.decode_json,
    "decode_messages": messages.decode_messages,
    "decode_variant": variant.decode_variant,
    "find_marks": batch_heads.find_marks,
    "index": batch_heads.index,
    "measure_headers": binary.measure_headers,
    "scan": scan.scan,
}
_LARGEST = "decode_json"

_GENERIC = re.compile(r"llvm\.(?!x86\.|aarch64\.)")  # what LLVM can make for any processor


def compile_object(target: Target) -> bytes:
    """Compile the kernels into one object file, which needs nothing but the C library.

    The code is for any processor of this architecture, so that a wheel fits them all.
    """
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, opt=3, reloc="pic", codemodel="default"
    )
    linked = llvm.parse_assembly("")
    _retarget(linked, target, machine)
    for name, (code, native_name) in _all_code().items():
        module = llvm.parse_assembly(code)
        _retarget(module, target, machine)
        module.get_function(native_name).name = name
        _keep_within(module, {name})  # another process may have given a helper the same name
        linked.link_in(module)
    _drop_error_paths(linked, machine, SIGNATURES)
    return bytes(machine.emit_object(linked))


def kernel_code(name: str) -> tuple[str, str]:
    """Return a kernel in LLVM's language, for this machine, and the name that numba gave it."""
    kinds = [types.int64 if k is int else from_dtype(np.dtype(k)) for k in SIGNATURES[name]]
    compiled = cfunc(types.int64(*kinds), **FLAGS)(_SOURCES[name])
    return compiled.inspect_llvm(), compiled.native_name


def _all_code() -> dict[str, tuple[str, str]]:
    """The code of all kernels, in the order of their signatures, made by two processes.

    The largest kernel takes as long as all others. Numba compiles in one thread.
    """
    names = sorted(SIGNATURES, key=lambda name: name != _LARGEST)
    with ProcessPoolExecutor(2, get_context("spawn")) as processes:
        found = dict(zip(names, processes.map(kernel_code, names), strict=True))
    return {name: found[name] for name in SIGNATURES}


def _retarget(module: Any, target: Target, machine: Any) -> None:
    """Make what numba wrote for this machine that of a target.

    Kernels take and load integers of stated widths at any alignment, and all targets are of 64 bits
    and little-endian, so the code means the same there. What numba would have written for this
    processor alone is refused with all else that is not in the C library.
    """
    module.triple, module.data_layout = target.triple, str(machine.target_data)


def _keep_within(module: Any, shown: Container[str]) -> None:
    """Hide all that a module defines, except for what is named."""
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and value.name not in shown:
            value.linkage = "internal"


def _drop_error_paths(module: Any, machine: Any, kept: Container[str]) -> None:
    """Remove numba's reports of Python errors, which would need numba: a kernel raises none."""
    _keep_within(module, kept)
    passes = llvm.create_new_module_pass_manager()
    passes.add_ipsccp_pass()
    passes.add_global_dead_code_eliminate_pass()
    tuning = llvm.create_pipeline_tuning_options(speed_level=0)
    passes.run(module, llvm.create_pass_builder(machine, tuning))
    needed = {function.name for function in module.functions if function.is_declaration}
    needed = {name for name in needed if not _GENERIC.match(name)}
    if needed:
        raise AssertionError(f"the kernels need {', '.join(sorted(needed))}")


def linkers(target: Target) -> list[list[str]]:
    """Return the commands of the linkers that are there, the best first."""
    has_zig = find_spec("ziglang") is not None
    zig = [sys.executable, "-P", "-m", "ziglang"] if has_zig else None
    return link_commands(target, shutil.which("ld") if target == here() else None, zig)


def link(code: bytes, command: list[str]) -> bytes:
    """Make a shared library of an object file.

    Args:
        code: The object file.
        command: One of those of :func:`linkers`.

    Raises:
        RuntimeError: The linker fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "kernels.o"), Path(folder, "kernels.so")
        source.write_bytes(code)
        done = subprocess.run(  # noqa: S603 - a linker
            [*command, output.name, source.name],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,  # so that no name of the library's tells where it was made
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")
        return output.read_bytes()


def main() -> None:
    """Write the library to the file that the command line names."""
    output, target = Path(sys.argv[1]), here()
    if sys.argv[2:] and sys.argv[2] != target.name:
        target = named(sys.argv[2])
    found = linkers(target)
    if not found:
        local = (
            "install binutils (ld), or " if target == here() and target.system == "linux" else ""
        )
        sys.exit(f"there is no linker for {target.name}: {local}pip install '{ZIG}'")
    output.write_bytes(link(compile_object(target), found[0]))


if __name__ == "__main__":
    main()
