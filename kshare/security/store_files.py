"""Files of stores, and what needs no cryptography of them: PEM certificates, JKS.

Kept apart from :mod:`kshare.security.key_store`, because importing ``cryptography`` takes 130 ms.
"""

import base64
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kshare.errors import OptionsError
from kshare.operating_system import OperatingSystem
from kshare.options.frozen import Properties
from kshare.options.raw import Faults
from kshare.security import jks

__all__ = [
    "JCEKS_MAGIC",
    "PEM_BLOCK",
    "der_certificates",
    "has_key",
    "jks_entries",
    "pem_armour",
    "pem_certificates",
    "private_file",
    "read_file",
    "store_fault",
]

JCEKS_MAGIC: Final = b"\xce\xce\xce\xce"
_STORE_BYTES_MAX: Final = 64 << 20
# Java's PemParser takes blanks for line ends, as in a PEM text that went through a one-line option.
PEM_BLOCK: Final = re.compile(r"-+BEGIN ([A-Z0-9 ]+?)-+(.*?)-+END \1-+", re.DOTALL)


def has_key(properties: Properties) -> bool:
    """True if the client has a key and a certificate of its own."""
    return "ssl.keystore.key" in properties or "ssl.keystore.location" in properties


def read_file(path: str, name: str) -> bytes:
    """Read a store.

    Args:
        path: The file.
        name: The property that names it, for the error.

    Raises:
        OptionsError: The file cannot be read, or is empty.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_STORE_BYTES_MAX)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "no path"
        raise store_fault(
            name,
            f"cannot be read here: {why}",
            "the file must be on the driver and all executors",
            path,
        ) from None
    if not content:
        raise store_fault(name, "is an empty file", value=path)
    return content


@contextmanager
def private_file(name: str, content: bytes, system: OperatingSystem) -> Iterator[Path]:
    """A file for what takes files only, until the block ends.

    It is in memory, as no folder may be writable, or else in a folder that no other user can open.

    Raises:
        OSError: There are no files in memory here, and no folder can be written.
    """
    try:
        descriptor = system.memory_file(name, content)
    except OSError:  # there are no such files here
        with tempfile.TemporaryDirectory(prefix="kshare-") as folder:  # mode 0700
            path = Path(folder, name)
            path.write_bytes(content)
            yield path
        return
    try:
        yield Path(system.path_of(descriptor))
    finally:
        os.close(descriptor)


def store_fault(name: str, wrong: str, right: str = "", value: str | None = None) -> OptionsError:
    """Return the error of one property; see :meth:`Faults.add`."""
    faults = Faults()
    faults.add(f"kafka.{name}", value, wrong, right)
    return OptionsError(faults.problems)


def pem_certificates(text: str, name: str) -> str:
    """Return the certificates of a text, in order, as PEM with lines of the right length."""
    try:
        certificates = der_certificates(text)
    except ValueError:
        raise store_fault(name, "has a certificate that is no Base64") from None
    if not certificates:
        raise store_fault(name, "holds no certificate in PEM format (-----BEGIN CERTIFICATE-----)")
    return "".join(map(pem_armour, certificates))


def der_certificates(text: str) -> list[bytes]:
    """Return the certificates of a text in PEM, in order, as DER.

    Raises:
        ValueError: One is no Base64, also for a character that is no ASCII.
    """
    return [
        base64.b64decode("".join(body.split()), validate=True)
        for label, body in PEM_BLOCK.findall(text)
        if label in {"CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE"}
    ]


def pem_armour(der: bytes, label: str = "CERTIFICATE") -> str:
    """Return DER as PEM."""
    lines = base64.encodebytes(der).decode().replace("\n", "")
    wrapped = "\n".join(lines[at : at + 64] for at in range(0, len(lines), 64))
    return f"-----BEGIN {label}-----\n{wrapped}\n-----END {label}-----\n"


def jks_entries(content: bytes, properties: Properties, kind: str) -> list[jks.Entry]:
    """Return the entries of a JKS store; ``kind`` is ``ssl.truststore`` or ``ssl.keystore``.

    Raises:
        OptionsError: The password is wrong, or the store is damaged.
    """
    try:
        return jks.read_jks(content, properties.get(f"{kind}.password"))
    except jks.WrongPasswordError:
        wrong = "does not open the store, or the store is damaged"
        raise store_fault(f"{kind}.password", wrong) from None
    except jks.DamagedStoreError:
        raise store_fault(f"{kind}.location", "is a damaged JKS store") from None
