"""From the kernels' source to machine code.

Cost: some seconds, of which one is the import of numba.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import cfunc, from_dtype, types

from kshare.wire.decode.kernels import batch_heads, binary, scan
from kshare.wire.decode.kernels.native import FLAGS

__all__ = ["build"]

_SOURCES: dict[str, Any] = {
    "copy_headers": binary.copy_headers,
    "find_marks": batch_heads.find_marks,
    "index": batch_heads.index,
    "measure_headers": binary.measure_headers,
    "scan": scan.scan,
}


def build(signatures: Mapping[str, Sequence[Any]], machine: Any) -> bytes:
    """Compile the kernels into one object file, which needs nothing but the C library.

    Args:
        signatures: Of each kernel the types of its arguments: int, or a structure of the layout.
        machine: LLVM's target machine.
    """
    linked = llvm.parse_assembly("")
    for name, arguments in signatures.items():
        kinds = [types.int64 if k is int else from_dtype(np.dtype(k)) for k in arguments]
        compiled = cfunc(types.int64(*kinds), **FLAGS)(_SOURCES[name])
        module = llvm.parse_assembly(compiled.inspect_llvm())
        module.get_function(compiled.native_name).name = name
        linked.link_in(module)
    _drop_error_paths(linked, machine, signatures)
    return bytes(machine.emit_object(linked))


def _drop_error_paths(module: Any, machine: Any, kept: Container[str]) -> None:
    """Remove numba's reports of Python errors, which would need numba: a kernel raises none."""
    for function in module.functions:
        if not function.is_declaration and function.name not in kept:
            function.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_ipsccp_pass()
    passes.add_global_dead_code_eliminate_pass()
    tuning = llvm.create_pipeline_tuning_options(speed_level=0)
    passes.run(module, llvm.create_pass_builder(machine, tuning))
    needed = {function.name for function in module.functions if function.is_declaration}
    needed = {name for name in needed if not name.startswith("llvm.")}
    if needed:
        raise AssertionError(f"the kernels need {', '.join(sorted(needed))}")
