"""From the kernels' source to a shared library.

``python -m kshare.wire.decode.kernels.build FILE`` writes it. The linker is the machine's ``ld``,
or else that of the package ``ziglang``, as not every machine that installs from source has one.

Cost: some seconds, of which one is the import of numba.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Container
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import cfunc, from_dtype, types

from kshare.wire.decode.kernels import batch_heads, binary, scan
from kshare.wire.decode.kernels.native import FLAGS
from kshare.wire.decode.layout import SIGNATURES

__all__ = ["compile_object", "link", "linkers"]

_SOURCES: dict[str, Any] = {
    "copy_headers": binary.copy_headers,
    "find_marks": batch_heads.find_marks,
    "index": batch_heads.index,
    "measure_headers": binary.measure_headers,
    "scan": scan.scan,
}


def compile_object() -> bytes:
    """Compile the kernels into one object file, which needs nothing but the C library.

    The code is for any processor of this architecture, so that a wheel fits them all.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(opt=3, reloc="pic", codemodel="default")
    linked = llvm.parse_assembly("")
    for name, arguments in SIGNATURES.items():
        kinds = [types.int64 if k is int else from_dtype(np.dtype(k)) for k in arguments]
        compiled = cfunc(types.int64(*kinds), **FLAGS)(_SOURCES[name])
        module = llvm.parse_assembly(compiled.inspect_llvm())
        module.get_function(compiled.native_name).name = name
        linked.link_in(module)
    _drop_error_paths(linked, machine, SIGNATURES)
    return bytes(machine.emit_object(linked))


def _drop_error_paths(module: Any, machine: Any, kept: Container[str]) -> None:
    """Remove numba's reports of Python errors, which would need numba: a kernel raises none."""
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and value.name not in kept:
            value.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_ipsccp_pass()
    passes.add_global_dead_code_eliminate_pass()
    tuning = llvm.create_pipeline_tuning_options(speed_level=0)
    passes.run(module, llvm.create_pass_builder(machine, tuning))
    needed = {function.name for function in module.functions if function.is_declaration}
    needed = {name for name in needed if not name.startswith("llvm.")}
    if needed:
        raise AssertionError(f"the kernels need {', '.join(sorted(needed))}")


def linkers() -> list[list[str]]:
    """Return the commands of the linkers that are there, the best first."""
    found = [[path] for path in [shutil.which("ld")] if path]
    if find_spec("ziglang") is not None:
        found.append([sys.executable, "-P", "-m", "ziglang", "ld.lld"])
    return found


def link(code: bytes, linker: list[str]) -> bytes:
    """Make a shared library of an object file.

    Raises:
        RuntimeError: The linker fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "kernels.o", Path(folder) / "kernels.so"
        source.write_bytes(code)
        # An executable stack is what ld assumes of an object file that does not say.
        options = ["-shared", "--strip-all", "-z", "noexecstack", "-o", str(target), str(source)]
        done = subprocess.run(  # noqa: S603 - a linker
            [*linker, *options], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(linker)} failed: {done.stderr.strip()}")
        return target.read_bytes()


def main() -> None:
    """Write the library to the file that the command line names."""
    found = linkers()
    if not found:
        sys.exit("there is no linker: install binutils (ld), or pip install ziglang")
    Path(sys.argv[1]).write_bytes(link(compile_object(), found[0]))


if __name__ == "__main__":
    main()
