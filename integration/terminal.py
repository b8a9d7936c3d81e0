"""Terminals that commands are typed into, and snippets pasted: a shell, or Python's prompt.

What a program prints is read in a thread, so that none waits for its reader. A terminal whose
program does not answer in time fails with all that it said.
"""

import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

PATIENCE_S = 1200.0  # a busy machine: PySpark is built, kernels are compiled, Spark starts
_DONE = "-- the block is done:"


class Terminal:
    """A shell in a folder.

    Args:
        folder: Where it starts.
        environment: Its environment variables.
        replacing: Texts that stand for others in all that is typed: a port, a folder.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str], replacing: Mapping[str, str]
    ) -> None:
        self._replacing = dict(replacing)
        self._is_python = False
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # what was typed is not read any more
            self._process.stdin.close()
        self._reader.join(PATIENCE_S)

    def run(self, block: str) -> str:
        """Run the lines of a shell's block, one after another; return what they print.

        AssertionError: One has failed.
        """
        said = ""
        for line in block.splitlines():
            self._type(f'{line}\ncode=$?; echo; echo "{_DONE}" $code\n')
            shown, code = self._until(_DONE)
            assert code.strip() == "0", f"{line}\n{shown}"
            said += shown
        return said

    def start(self, line: str, until: str) -> str:
        """Run a program that goes on; return what it printed up to a line."""
        self._type(f"{line}\n")
        return self._until(until)[0]

    def start_python(self) -> None:
        """Start Python's prompt, as without a terminal it has to be told."""
        self._type("exec python -i -q -u\n")
        self._is_python = True

    def paste(self, block: str) -> str:
        """Paste a block at Python's prompt; return what it prints, and Spark's logs.

        AssertionError: It has raised an exception.
        """
        assert self._is_python
        self._type(f"{block}\n\nprint('\\n{_DONE}', 0)\n")
        shown, _ = self._until(_DONE)
        assert "Traceback (most recent call last)" not in shown, shown
        assert "SyntaxError" not in shown, shown
        return shown

    def interrupt(self) -> str:
        """Press Ctrl+C, and return what the program says until the shell is back."""
        (program,) = psutil.Process(self._process.pid).children()
        program.send_signal(signal.SIGINT)
        self._type(f'echo "{_DONE}" $?\n')
        shown, code = self._until(_DONE)
        assert code.strip() == "0", shown
        return shown

    def _type(self, text: str) -> None:
        assert self._process.stdin is not None
        for old, new in self._replacing.items():
            text = text.replace(old, new)
        self._process.stdin.write(text)
        self._process.stdin.flush()

    def _until(self, text: str) -> tuple[str, str]:
        """What is printed before a text, and what stands behind it in its line."""
        deadline, shown = time.monotonic() + PATIENCE_S, ""
        while True:
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                raise AssertionError(f"no {text!r} within {PATIENCE_S:g} s:\n{shown}") from None
            assert line, f"the program has ended without {text!r}:\n{shown}"
            if text in line:
                return shown, line.partition(text)[2]
            shown += line

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout:
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put("")
