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
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

_DAY = dt.timedelta(days=1)


class Pair(NamedTuple):
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

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


def make(name: str, issuer: Pair | None = None, *, authority: bool = False, days: int = 30) -> Pair:
    """A certificate for ``localhost`` and 127.0.0.1, if ``name`` is localhost.

    Args:
        name: the subject.
        issuer: who signs; None: itself.
        authority: whether it may sign others.
        days: how long it is good from now; negative: how long it is expired.
    """
    key = ec.generate_private_key(ec.SECP256R1())
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


def jks_of(
    trusted: Sequence[bytes],
    password: str,
    chains: Sequence[Sequence[bytes]] = (),
    version: int = 2,
) -> bytes:
    """A JKS store, as JavaKeyStore of OpenJDK writes it; the keys in it are no keys."""

    def text(value: str) -> bytes:
        return struct.pack(">H", len(value)) + value.encode()

    def certificate(der: bytes) -> bytes:
        kind = text("X.509") if version == 2 else b""
        return kind + struct.pack(">I", len(der)) + der

    body = b"\xfe\xed\xfe\xed" + struct.pack(">II", version, len(trusted) + len(chains))
    for number, chain in enumerate(chains):
        body += struct.pack(">I", 1) + text(f"key-{number}") + struct.pack(">Q", 0)
        body += struct.pack(">I", 5) + b"nokey" + struct.pack(">I", len(chain))
        body += b"".join(certificate(der) for der in chain)
    for number, der in enumerate(trusted):
        body += struct.pack(">I", 2) + text(f"ca-{number}") + struct.pack(">Q", 0)
        body += certificate(der)
    salted = password.encode("utf-16-be") + b"Mighty Aphrodite" + body
    return body + hashlib.sha1(salted).digest()
