"""A headless Chromium: the machine's own, or one that is fetched once, without root.

The npm package ``@sparticuz/chromium`` brings the browser, the libraries that it needs beyond a
bare Linux, and fonts, each packed with Brotli. Playwright drives it, and downloads nothing.
"""

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
import pyarrow as pa

from integration.jars import CACHE, locked

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PACKAGE: Final = "@sparticuz/chromium@147.0.0"
HOME: Final = CACHE / "chromium-147.0.0"
INSTALLED: Final = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
FETCH_TIMEOUT_S: Final = 600
FONTS: Final = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{home}/fonts</dir><dir>{dejavu}</dir><cachedir>{home}/font-cache</cachedir></fontconfig>
"""


@contextmanager
def chromium(*, own: bool = False) -> "Iterator[Browser]":
    """Run a browser.

    Args:
        own: Use the one that is fetched even if the machine has one: pictures are alike everywhere.

    Raises:
        RuntimeError: There is none, and none can be fetched.
    """
    from playwright.sync_api import sync_playwright

    program = None if own else next(filter(None, map(shutil.which, INSTALLED)), None)
    environment = dict(os.environ)
    if program is None:
        program = str(fetched())
        environment["LD_LIBRARY_PATH"] = str(HOME / "lib")
        environment["FONTCONFIG_FILE"] = str(HOME / "kshare-fonts.conf")
    with sync_playwright() as playwright:
        # In containers Chromium has no rights to make a sandbox; it opens our own page alone.
        browser = playwright.chromium.launch(
            executable_path=program,
            env=dict[str, str | float | bool](environment),
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        try:
            yield browser
        finally:
            browser.close()


def fetched() -> Path:
    """Return the browser's program, fetched if it is missing."""
    program = HOME / "chromium"
    with locked(CACHE / "chromium.lock"):
        if not program.exists():
            _fetch()
        fonts = FONTS.format(home=HOME, dejavu=Path(mpl.get_data_path()) / "fonts" / "ttf")
        (HOME / "kshare-fonts.conf").write_text(fonts)
    return program


def _fetch() -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError(
            "the page of kshare ui is tested in a browser: install chromium (Debian: apt-get "
            "install chromium), or npm, by which it is fetched"
        )
    HOME.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HOME.parent) as folder:
        done = subprocess.run(
            [npm, "pack", PACKAGE, "--pack-destination", folder],
            check=False,
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            cwd=folder,
        )
        packed = next(Path(folder).glob("*.tgz"), None)
        if done.returncode or packed is None:
            raise RuntimeError(f"cannot fetch {PACKAGE} with npm:\n{done.stderr[-2000:]}")
        made = Path(folder) / "made"
        made.mkdir()
        with tarfile.open(packed) as package:
            for member in package.getmembers():
                if member.name.endswith(".br"):
                    _unpack(Path(member.name).name, _plain(package.extractfile(member)), made)
        shutil.rmtree(HOME, ignore_errors=True)
        made.rename(HOME)


def _plain(packed: Any) -> bytes:
    plain: bytes = pa.CompressedInputStream(pa.PythonFile(packed, "r"), "brotli").read()
    return plain


def _unpack(name: str, content: bytes, folder: Path) -> None:
    if name.endswith(".tar.br"):
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(folder, filter="data")
    else:
        program = folder / name.removesuffix(".br")
        program.write_bytes(content)
        program.chmod(0o755)
