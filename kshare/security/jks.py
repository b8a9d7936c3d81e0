"""JKS, Java's own format of key stores and trust stores.

Guarantee: any bytes are a store, or a :class:`DamagedStoreError`; what a password guards is
compared in constant time. Cost: one pass, and a digest for each 20 bytes of a key.

The store is read as ``sun.security.provider.JavaKeyStore`` of OpenJDK writes it, a private key as
``sun.security.provider.KeyProtector`` does: in DER, an EncryptedPrivateKeyInfo (RFC 5208)
whose data are a salt, the key XORed with a chain of SHA-1 digests, and a digest of the key.
"""

import hashlib
import hmac
import struct
from dataclasses import dataclass
from typing import Final

from kshare.options.frozen import HIDDEN

__all__ = [
    "JKS_MAGIC",
    "DamagedStoreError",
    "Entry",
    "UnknownProtectionError",
    "WrongPasswordError",
    "private_key",
    "read_jks",
]

JKS_MAGIC: Final = b"\xfe\xed\xfe\xed"
_STORE_SALT: Final = b"Mighty Aphrodite"
_KEY_ENTRY, _TRUSTED_ENTRY = 1, 2
_DIGEST_BYTES: Final = 20
_SALT_BYTES: Final = 20
_SEQUENCE, _OCTETS, _OBJECT = 0x30, 0x04, 0x06
# 1.3.6.1.4.1.42.2.17.1.1
_KEY_PROTECTOR: Final = bytes.fromhex("2b060104012a02110101")


class DamagedStoreError(Exception):
    """The bytes are no JKS store, or a key in it is none."""


class WrongPasswordError(Exception):
    """The digest is not the one that the password gives."""


class UnknownProtectionError(Exception):
    """A key is protected in another way than Java's own."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a store.

    Attributes:
        alias: its name.
        certificates: DER; the one that is trusted, or a key's chain, the key's own first.
        protected: the key as :func:`private_key` takes it; None: a trusted certificate.
    """

    alias: str
    certificates: tuple[bytes, ...]
    protected: bytes | None

    def __repr__(self) -> str:
        return f"Entry({HIDDEN})"


def read_jks(content: bytes, password: str | None) -> list[Entry]:
    """The entries of a store, in order.

    Args:
        content: the file.
        password: the store's; None: the digest is not checked, as in Java.

    Raises:
        DamagedStoreError: It ends early, or has what no store has.
        WrongPasswordError: It is wrong, or the store is damaged where that cannot be seen.
    """
    reader = _Reader(content)
    entries = reader.entries()
    body, digest = content[: reader.at], reader.take(_DIGEST_BYTES)
    if password is not None and not hmac.compare_digest(
        _sha1(_java_chars(password) + _STORE_SALT + body), digest
    ):
        raise WrongPasswordError
    return entries


def private_key(protected: bytes, password: str) -> bytes:
    """A key in the clear: PKCS#8, DER.

    Args:
        protected: as it is in the store.
        password: the key's.

    Raises:
        DamagedStoreError: This is no protected key.
        UnknownProtectionError: Another algorithm than Java's own.
        WrongPasswordError: It is wrong, or the key is damaged where that cannot be seen.
    """
    whole = _Der(protected)
    info = _Der(whole.value(_SEQUENCE))
    algorithm = _Der(info.value(_SEQUENCE))
    data = info.value(_OCTETS)
    oid = algorithm.value(_OBJECT)
    if whole.left or info.left:
        raise DamagedStoreError
    if oid != _KEY_PROTECTOR:
        raise UnknownProtectionError
    if len(data) < _SALT_BYTES + _DIGEST_BYTES:
        raise DamagedStoreError
    salt, hidden, digest = (
        data[:_SALT_BYTES],
        data[_SALT_BYTES:-_DIGEST_BYTES],
        data[-_DIGEST_BYTES:],
    )
    secret = _java_chars(password)
    key = _xor(hidden, _key_stream(secret, salt, len(hidden)))
    if not hmac.compare_digest(_sha1(secret + key), digest):
        raise WrongPasswordError
    return key


def _key_stream(secret: bytes, salt: bytes, size: int) -> bytes:
    """Each block is the digest of the password and the block before it; the salt is the first."""
    blocks, block = [], salt
    for _ in range(0, size, _DIGEST_BYTES):
        block = _sha1(secret + block)
        blocks.append(block)
    return b"".join(blocks)[:size]


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one) ^ int.from_bytes(other)).to_bytes(len(one))


def _sha1(content: bytes) -> bytes:
    return hashlib.sha1(content).digest()  # noqa: S324 - Java's


def _java_chars(password: str) -> bytes:
    """Java takes a text's 16-bit units as they are, paired surrogates or not."""
    return password.encode("utf-16-be", "surrogatepass")


class _Reader:
    """Reads one store once: big-endian, as Java's DataOutputStream writes.

    No count is believed: each thing that is counted takes bytes, and these are bounded.

    Attributes:
        at: how many bytes are read.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.at = 0

    def entries(self) -> list[Entry]:
        if self.take(len(JKS_MAGIC)) != JKS_MAGIC:
            raise DamagedStoreError
        version, count = self._number(">I"), self._number(">I")
        if version not in {1, 2}:
            raise DamagedStoreError
        return [self._entry(version) for _ in range(count)]

    def _entry(self, version: int) -> Entry:
        tag = self._number(">I")
        alias = self.take(self._number(">H")).decode(errors="replace")
        self.take(8)  # date
        if tag == _TRUSTED_ENTRY:
            return Entry(alias, (self._certificate(version),), None)
        if tag != _KEY_ENTRY:
            raise DamagedStoreError
        protected = self.take(self._number(">I"))
        chain = [self._certificate(version) for _ in range(self._number(">I"))]
        return Entry(alias, tuple(chain), protected)

    def _certificate(self, version: int) -> bytes:
        if version == 2:
            self.take(self._number(">H"))  # the type's name: X.509
        return self.take(self._number(">I"))

    def _number(self, form: str) -> int:
        value: int
        (value,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return value

    def take(self, size: int) -> bytes:
        taken = self._content[self.at : self.at + size]
        if len(taken) < size:
            raise DamagedStoreError
        self.at += size
        return taken


class _Der:
    """Reads values of DER, one after the other.

    Attributes:
        left: what is not read yet.
    """

    def __init__(self, content: bytes) -> None:
        self.left = content

    def value(self, tag: int) -> bytes:
        """The next value's content.

        Raises:
            DamagedStoreError: The value has another tag, or does not fit.
        """
        if len(self.left) < 2 or self.left[0] != tag:
            raise DamagedStoreError
        size, start = self.left[1], 2
        if size >= 0x80:  # the low bits say how many bytes the length has
            start += size & 0x7F
            size = int.from_bytes(self.left[2:start])
            if size < 0x80 or self.left[2] == 0:  # none, or not the shortest: no DER
                raise DamagedStoreError
        if len(self.left) < start + size:
            raise DamagedStoreError
        taken, self.left = self.left[start : start + size], self.left[start + size :]
        return taken
