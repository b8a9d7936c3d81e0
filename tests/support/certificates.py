"""Certificates for tests: made in milliseconds, with keys on an elliptic curve."""

import datetime as dt
import hashlib
import ipaddress
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey

_DAY = dt.timedelta(days=1)


class Pair(NamedTuple):
    """A certificate and its key."""

    certificate: x509.Certificate
    key: Key

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(s.Encoding.PEM).decode()

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(s.Encoding.DER)

    def key_pem(
        self, password: str | None = None, form: s.PrivateFormat = s.PrivateFormat.PKCS8
    ) -> str:
        cipher: Any = s.BestAvailableEncryption(password.encode()) if password else s.NoEncryption()
        return self.key.private_bytes(s.Encoding.PEM, form, cipher).decode()


def make(
    name: str,
    issuer: Pair | None = None,
    *,
    authority: bool = False,
    days: int = 30,
    key: Key | None = None,
) -> Pair:
    """A certificate for ``localhost`` and 127.0.0.1, if ``name`` is localhost.

    Args:
        name: the subject.
        issuer: who signs; None: itself.
        authority: whether it may sign others.
        days: how long it is good from now; negative: how long it is expired.
        key: its key; None: a new one, on an elliptic curve.
    """
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    names: list[x509.GeneralName] = [x509.DNSName(name)]
    if name == "localhost":
        names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 100 * _DAY)
        .not_valid_after(now + days * _DAY)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    return Pair(builder.sign(issuer.key if issuer else key, hashes.SHA256()), key)


def pkcs12_of(own: Pair | None, others: Sequence[Pair], password: str | None) -> bytes:
    """A PKCS#12 store of a key with its certificate, and of other certificates."""
    cipher: Any = s.BestAvailableEncryption(password.encode()) if password else s.NoEncryption()
    return pkcs12.serialize_key_and_certificates(
        b"own",
        own.key if own else None,
        own.certificate if own else None,
        [pair.certificate for pair in others],
        cipher,
    )


def protected_of(key: bytes, password: str, salt: bytes = b"s" * 20) -> bytes:
    """A private key as KeyProtector of OpenJDK writes it.

    Args:
        key: PKCS#8, DER; any bytes will do.
        password: the key's.
        salt: 20 bytes.
    """
    secret = password.encode("utf-16-be", "surrogatepass")
    stream, digest = b"", salt
    while len(stream) < len(key):
        digest = hashlib.sha1(secret + digest).digest()
        stream += digest
    hidden = bytes(one ^ other for one, other in zip(key, stream, strict=False))
    return encrypted_key_info(salt + hidden + hashlib.sha1(secret + key).digest())


def encrypted_key_info(data: bytes, oid: str = "2b060104012a02110101") -> bytes:
    """An EncryptedPrivateKeyInfo of RFC 5208."""
    algorithm = der_value(0x06, bytes.fromhex(oid)) + der_value(0x05, b"")
    return der_value(0x30, der_value(0x30, algorithm) + der_value(0x04, data))


def der_value(tag: int, content: bytes) -> bytes:
    """A value of DER."""
    size = len(content)
    if size < 128:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(length)]) + length + content


def jks_key(pair: Pair, others: Sequence[Pair], password: str) -> tuple[bytes, list[bytes]]:
    """A key's entry for :func:`jks_of`."""
    plain = pair.key.private_bytes(s.Encoding.DER, s.PrivateFormat.PKCS8, s.NoEncryption())
    return protected_of(plain, password), [pair.der, *(other.der for other in others)]


def jks_of(
    trusted: Sequence[bytes],
    password: str,
    keys: Sequence[tuple[bytes, Sequence[bytes]]] = (),
    version: int = 2,
) -> bytes:
    """A JKS store, as JavaKeyStore of OpenJDK writes it.

    Args:
        trusted: certificates, DER.
        password: the store's.
        keys: the keys in their protected form, each with its chain of certificates.
        version: of the format, 1 or 2.
    """

    def text(value: str) -> bytes:
        return struct.pack(">H", len(value)) + value.encode()

    def certificate(der: bytes) -> bytes:
        kind = text("X.509") if version == 2 else b""
        return kind + struct.pack(">I", len(der)) + der

    body = b"\xfe\xed\xfe\xed" + struct.pack(">II", version, len(trusted) + len(keys))
    for number, (protected, chain) in enumerate(keys):
        body += struct.pack(">I", 1) + text(f"key-{number}") + struct.pack(">Q", 0)
        body += struct.pack(">I", len(protected)) + protected + struct.pack(">I", len(chain))
        body += b"".join(certificate(der) for der in chain)
    for number, der in enumerate(trusted):
        body += struct.pack(">I", 2) + text(f"ca-{number}") + struct.pack(">Q", 0)
        body += certificate(der)
    return sealed_jks(body, password)


def sealed_jks(body: bytes, password: str) -> bytes:
    """A store's content with the digest that the password gives."""
    salted = password.encode("utf-16-be", "surrogatepass") + b"Mighty Aphrodite" + body
    return body + hashlib.sha1(salted).digest()
