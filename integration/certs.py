"""Certificates for the test brokers and their clients, new ones for each broker.

All files are PEM; a pair is a certificate followed by its key.
"""

import datetime as dt
import ipaddress
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from integration.jars import java

DAY = dt.timedelta(days=1)
STORE_PASSWORD = "store-secret"
KEY_PASSWORD = "key-secret"


@dataclass(frozen=True)
class Certificates:
    """Where they are.

    Attributes:
        ca: the authority that signed all others.
        stranger_ca: an authority that signed no certificate.
        server_pair: for 127.0.0.1 and localhost.
        misnamed_pair: for another host.
        expired_pair: like ``server_pair``, until yesterday.
        client_certificate: a client's, for listeners that want one.
        client_key: its key, encrypted with ``KEY_PASSWORD``.
        client_pair: both, the key not encrypted.
        trust_p12: the authority in PKCS#12, with ``STORE_PASSWORD``.
        client_p12: the client's certificate and key, in the same format.
    """

    ca: Path
    stranger_ca: Path
    server_pair: Path
    misnamed_pair: Path
    expired_pair: Path
    client_certificate: Path
    client_key: Path
    client_pair: Path
    trust_p12: Path
    client_p12: Path


@dataclass(frozen=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_certificates(folder: Path) -> Certificates:
    """Make all certificates in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    files = Certificates(
        ca=folder / "ca.pem",
        stranger_ca=folder / "stranger-ca.pem",
        server_pair=folder / "server.pem",
        misnamed_pair=folder / "misnamed.pem",
        expired_pair=folder / "expired.pem",
        client_certificate=folder / "client-certificate.pem",
        client_key=folder / "client-key.pem",
        client_pair=folder / "client.pem",
        trust_p12=folder / "trust.p12",
        client_p12=folder / "client.p12",
    )
    authority, stranger = _authority("kshare test authority"), _authority("stranger")
    files.ca.write_bytes(_pem(authority.certificate))
    files.stranger_ca.write_bytes(_pem(stranger.certificate))
    here: list[x509.GeneralName] = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    certificates: tuple[tuple[Path, list[x509.GeneralName], int], ...] = (
        (files.server_pair, here, 30),
        (files.misnamed_pair, [x509.DNSName("elsewhere.test")], 30),
        (files.expired_pair, here, -1),
    )
    for path, names, days in certificates:
        certificate, key = _signed(authority, "broker", names, days)
        path.write_bytes(_pem(certificate) + _key_pem(key))
    certificate, key = _signed(authority, "client", [x509.DNSName("client.test")], 30)
    files.client_certificate.write_bytes(_pem(certificate))
    files.client_key.write_bytes(_key_pem(key, KEY_PASSWORD))
    files.client_pair.write_bytes(_pem(certificate) + _key_pem(key))
    hidden = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
    files.client_p12.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"client", key, certificate, [authority.certificate], hidden
        )
    )
    files.trust_p12.write_bytes(
        pkcs12.serialize_java_truststore(
            [pkcs12.PKCS12Certificate(authority.certificate, b"ca")], hidden
        )
    )
    return files


def make_client_jks(certificates: Certificates, path: Path) -> None:
    """The client's key store as Java's keytool writes JKS, the key with ``KEY_PASSWORD``."""
    keytool = Path(java()).resolve().with_name("keytool")
    command = [str(keytool), "-importkeystore", "-srckeystore", str(certificates.client_p12)]
    command += ["-srcstoretype", "PKCS12", "-srcstorepass", STORE_PASSWORD, "-srcalias", "client"]
    command += ["-destkeystore", str(path), "-deststoretype", "JKS"]
    command += ["-deststorepass", STORE_PASSWORD, "-destkeypass", KEY_PASSWORD]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def _authority(name: str) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    certificate = (
        _builder(subject, subject, key, 30)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _Authority(certificate, key)


def _signed(
    authority: _Authority, name: str, names: list[x509.GeneralName], days: int
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        _builder(_name(name), authority.certificate.subject, key, days)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return certificate, key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 10 * DAY)
        .not_valid_after(now + days * DAY)
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey, password: str | None = None) -> bytes:
    hidden: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        hidden = serialization.BestAvailableEncryption(password.encode())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)
