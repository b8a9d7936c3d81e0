"""Where the time goes that the build of a wheel needs to compile the kernels.

``python -m bench.compile_profile``: CPU seconds of numba's passes over all functions, each without
what it compiles in between, and of what comes after them (LLVM's code).
"""

import time
from collections import Counter, defaultdict
from typing import Any

from numba.core import event

from kshare.read.decode.kernels import build
from kshare.read.decode.layout import SIGNATURES


class _Passes(event.Listener):
    """CPU seconds of each pass, and how often it ran.

    Attributes:
        seconds: By name of the pass.
        runs: By name of the pass.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.runs = Counter[str]()
        self._open: list[tuple[float, float]] = []  # begin, and what passes within it took

    def on_start(self, _: Any) -> None:
        self._open.append((time.process_time(), 0.0))

    def on_end(self, ended: Any) -> None:
        begin, inner = self._open.pop()
        whole = time.process_time() - begin
        name = str(ended.data["name"]).partition(" [")[0]
        self.seconds[name] += whole - inner
        self.runs[name] += 1
        if self._open:
            outer, before = self._open[-1]
            self._open[-1] = (outer, before + whole)


def main() -> None:
    """Compile all kernels, and print the table."""
    passes = _Passes()
    began = time.process_time()
    with event.install_listener("numba:run_pass", passes):
        for name in SIGNATURES:
            build.kernel_code(name)
    whole = time.process_time() - began
    after = whole - sum(passes.seconds.values())
    print(f"{whole:5.2f} s  all; {passes.runs['native_lowering']} functions")
    for name, seconds in sorted(passes.seconds.items(), key=lambda each: -each[1])[:8]:
        print(f"{seconds:5.2f} s  {seconds / whole:4.0%}  {name}")
    print(f"{after:5.2f} s  {after / whole:4.0%}  the rest: LLVM")


if __name__ == "__main__":
    main()
