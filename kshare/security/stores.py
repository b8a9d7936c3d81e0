"""Key stores and trust stores: PEM, PKCS#12 and JKS.

Law: what comes out is PEM, whatever went in; a store is read by what its bytes are, since Java too
opens PKCS#12 under the name of JKS. Cost: a file and a key derivation each time.
"""

import base64
import binascii
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kshare.errors import OptionsError
from kshare.options.faults import Faults
from kshare.options.frozen import HIDDEN, Properties
from kshare.security import jks

__all__ = ["KeyStore", "key_store", "trust_store"]

_JCEKS_MAGIC: Final = b"\xce\xce\xce\xce"
_STORE_BYTES_MAX: Final = 64 << 20
# Java's PemParser takes blanks for line ends, as in a PEM text that went through a one-line option.
_BLOCK: Final = re.compile(r"-+BEGIN ([A-Z0-9 ]+?)-+(.*?)-+END \1-+", re.DOTALL)
_KEYTOOL: Final = (
    "convert it: keytool -importkeystore -srckeystore {0} -destkeystore {0}.p12 "
    "-deststoretype PKCS12, and set kafka.ssl.keystore.location to {0}.p12"
)
_KEYTOOL_ONE: Final = (
    "make a store of one: keytool -importkeystore -srckeystore {0} -srcalias ALIAS "
    "-destkeystore {0}.p12 -deststoretype PKCS12, and set kafka.ssl.keystore.location to "
    "{0}.p12"
)
_NO_KEY: Final = "holds no private key with its certificate"
_UNREADABLE_KEY: Final = "holds a private key that cannot be read"


@dataclass(frozen=True, slots=True)
class KeyStore:
    """A client's certificate and its key.

    Attributes:
        certificates: PEM, the client's own first, then those that lead to an authority.
        key: of the ``cryptography`` package.
    """

    certificates: str
    key: Any

    def __repr__(self) -> str:
        return f"KeyStore({HIDDEN})"

    def key_pem(self, password: str | None = None) -> str:
        """The private key as PKCS#8 PEM.

        Args:
            password: encrypts it; None: it is in the clear.
        """
        from cryptography.hazmat.primitives import serialization as s  # noqa: PLC0415

        cipher = s.BestAvailableEncryption(password.encode()) if password else s.NoEncryption()
        pem: bytes = self.key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, cipher)
        return pem.decode()


def key_store(properties: Properties) -> KeyStore | None:
    """The client's certificate and key, as the properties ``ssl.keystore.*`` have it.

    Args:
        properties: Java's, without ``kafka.``.

    Returns:
        None if there is none.

    Raises:
        OptionsError: it cannot be read, or its password is wrong.
    """
    password = properties.get("ssl.key.password")
    if "ssl.keystore.key" in properties:
        key = _pem_key(properties["ssl.keystore.key"], password, "ssl.keystore.key")
        chain = _certificates(
            properties.get("ssl.keystore.certificate.chain", ""), "ssl.keystore.certificate.chain"
        )
        return _matched(key, chain, "ssl.keystore.certificate.chain")
    where = "ssl.keystore.location"
    if where not in properties:
        return None
    content = _read(properties[where], where)
    if properties.get("ssl.keystore.type", "").strip().upper() == "PEM":
        text = content.decode("latin-1")
        return _matched(_pem_key(text, password, where), _certificates(text, where), where)
    if content.startswith(_JCEKS_MAGIC):
        right = _KEYTOOL.format(properties[where])
        raise _fault(where, "is a JCEKS key store, which kshare does not read", right)
    if content.startswith(jks.JKS_MAGIC):
        return _jks_keys(content, properties)
    store = _pkcs12(content, properties, "ssl.keystore")
    if store.key is None or store.cert is None:
        raise _fault(where, _NO_KEY)
    others = [entry.certificate for entry in store.additional_certs]
    certificates = _chain(store.cert.certificate, others)
    return KeyStore("".join(_pem(certificate) for certificate in certificates), store.key)


def trust_store(properties: Properties) -> str | None:
    """The certificates that brokers must lead to, as ``ssl.truststore.*`` have them.

    Args:
        properties: Java's, without ``kafka.``.

    Returns:
        PEM; None if the system's authorities are trusted.

    Raises:
        OptionsError: they cannot be read, or the password is wrong.
    """
    inline, where = "ssl.truststore.certificates", "ssl.truststore.location"
    if inline in properties:
        return _certificates(properties[inline], inline)
    if where not in properties:
        return None
    content = _read(properties[where], where)
    if properties.get("ssl.truststore.type", "").strip().upper() == "PEM":
        return _certificates(content.decode("latin-1"), where)
    if content.startswith(_JCEKS_MAGIC):
        raise _fault(where, "is a JCEKS store", "convert it to PKCS12 with keytool")
    if content.startswith(jks.JKS_MAGIC):
        entries = _jks_entries(content, properties, "ssl.truststore")
        found = [_armour(entry.certificates[0]) for entry in entries if entry.certificates]
    else:
        store = _pkcs12(content, properties, "ssl.truststore")
        bags = ([store.cert] if store.cert else []) + list(store.additional_certs)
        found = [_pem(bag.certificate) for bag in bags]
    if not found:
        raise _fault(where, "holds no certificate")
    return "".join(found)


# -- PEM ----------------------------------------------------------------------------------------


def _certificates(text: str, name: str) -> str:
    """The certificates of a text, in order, as PEM with lines as they should be."""
    found = []
    for label, body in _BLOCK.findall(text):
        if label not in {"CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE"}:
            continue
        try:
            found.append(_armour(base64.b64decode("".join(body.split()), validate=True)))
        except binascii.Error:
            raise _fault(name, "has a certificate that is no Base64") from None
    if not found:
        raise _fault(name, "holds no certificate in PEM format (-----BEGIN CERTIFICATE-----)")
    return "".join(found)


def _armour(der: bytes, label: str = "CERTIFICATE") -> str:
    lines = base64.encodebytes(der).decode().replace("\n", "")
    wrapped = "\n".join(lines[at : at + 64] for at in range(0, len(lines), 64))
    return f"-----BEGIN {label}-----\n{wrapped}\n-----END {label}-----\n"


def _pem_key(text: str, password: str | None, name: str) -> Any:
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        load_pem_private_key,
    )

    found = [(match[1], match[2], match[0]) for match in _BLOCK.finditer(text)]
    keys = [(label, body, whole) for label, body, whole in found if label.endswith("PRIVATE KEY")]
    if len(keys) != 1:
        raise _fault(
            name, f"holds {len(keys) or 'no'} private keys in PEM format; exactly one is wanted"
        )
    label, body, whole = keys[0]
    encrypted = label.startswith("ENCRYPTED") or "ENCRYPTED" in body
    if encrypted and password is None:
        raise _fault("ssl.key.password", f"must be specified, the key in {name} is encrypted")
    try:
        pem = whole if ":" in body else _armour(base64.b64decode("".join(body.split())), label)
        return load_pem_private_key(pem.encode(), password.encode() if encrypted else None)  # type: ignore[union-attr]
    except Exception:
        # No text of the library's: it may hold a piece of what it could not read.
        if encrypted:
            raise _fault("ssl.key.password", f"does not open the key in {name}") from None
        raise _fault(name, _UNREADABLE_KEY) from None


def _matched(key: Any, chain: str, name: str) -> KeyStore:
    """Key and certificate, if they belong together."""
    from cryptography import x509  # noqa: PLC0415

    try:
        first, *others = x509.load_pem_x509_certificates(chain.encode())
        belongs = first.public_key() == key.public_key()
    except Exception:  # of several kinds: what is damaged, what is of an unknown algorithm
        raise _fault(name, "holds a certificate that cannot be read") from None
    if not belongs:
        raise _fault(name, "begins with a certificate that is not the private key's")
    return KeyStore("".join(_pem(certificate) for certificate in (first, *others)), key)


# -- PKCS#12 ------------------------------------------------------------------------------------


def _pkcs12(content: bytes, properties: Properties, kind: str) -> Any:
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12  # noqa: PLC0415

    password = properties.get(f"{kind}.password")
    if not content.startswith(b"\x30"):
        raise _fault(
            f"{kind}.location", "is neither PKCS#12 nor JKS", f"set kafka.{kind}.type=PEM?"
        )
    try:
        return load_pkcs12(content, None if password is None else password.encode())
    except Exception:  # of several kinds, some with the bytes in their text
        wrong = "does not open the store, or the store is damaged"
        if password is None:
            wrong = "must be specified, the store cannot be read without it"
        raise _fault(f"{kind}.password", wrong) from None


def _chain(own: Any, others: list[Any]) -> list[Any]:
    """A certificate and those that lead from it to an authority; the order in a store is any."""
    chain, left = [own], list(others)
    while left and chain[-1].issuer != chain[-1].subject:
        issuers = [certificate for certificate in left if certificate.subject == chain[-1].issuer]
        if not issuers:
            break
        chain.append(issuers[0])
        left.remove(issuers[0])
    return chain


def _pem(certificate: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415

    pem: bytes = certificate.public_bytes(Encoding.PEM)
    return pem.decode()


# -- JKS ----------------------------------------------------------------------------------------


def _jks_entries(content: bytes, properties: Properties, kind: str) -> list[jks.Entry]:
    try:
        return jks.read_jks(content, properties.get(f"{kind}.password"))
    except jks.WrongPasswordError:
        wrong = "does not open the store, or the store is damaged"
        raise _fault(f"{kind}.password", wrong) from None
    except jks.DamagedStoreError:
        raise _fault(f"{kind}.location", "is a damaged JKS store") from None


def _jks_keys(content: bytes, properties: Properties) -> KeyStore:
    """The one key of a store; of several, Java takes the first that suits the broker."""
    where, own, stores = "ssl.keystore.location", "ssl.key.password", "ssl.keystore.password"
    path = properties[where]
    if stores not in properties:
        raise _fault(stores, "must be specified, the store cannot be read without it")
    entries = _jks_entries(content, properties, "ssl.keystore")
    keys = [
        (entry, entry.protected)
        for entry in entries
        if entry.protected is not None and entry.certificates
    ]
    if not keys:
        raise _fault(where, _NO_KEY)
    if len(keys) > 1:
        aliases = ", ".join(repr(entry.alias[:40]) for entry, _ in keys[:8])
        wrong = f"holds {len(keys)} private keys (aliases: {aliases}); exactly one is wanted"
        raise _fault(where, wrong, _KEYTOOL_ONE.format(path))
    entry, protected = keys[0]
    used = own if own in properties else stores  # as Kafka's DefaultSslEngineFactory
    try:
        key = jks.private_key(protected, properties[used])
    except jks.WrongPasswordError:
        if used == own:
            raise _fault(own, f"does not open the key in {where}") from None
        raise _fault(stores, "does not open the key in the store", f"set kafka.{own}") from None
    except jks.UnknownProtectionError:
        wrong = "holds a private key that is protected in another way than Java's own"
        right = f"with the Java that made it, {_KEYTOOL.format(path)}"
        raise _fault(where, wrong, right) from None
    except jks.DamagedStoreError:
        raise _fault(where, _UNREADABLE_KEY) from None
    chain = "".join(_armour(der) for der in entry.certificates)
    return _matched(_der_key(key, where), chain, where)


def _der_key(der: bytes, name: str) -> Any:
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        load_der_private_key,
    )

    try:
        return load_der_private_key(der, None)
    except Exception:  # of several kinds, some with the bytes in their text
        raise _fault(name, _UNREADABLE_KEY) from None


# -- files --------------------------------------------------------------------------------------


def _read(path: str, name: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(_STORE_BYTES_MAX)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "no path"
        raise _fault(
            name,
            f"cannot be read here: {why}",
            "the file must be on the driver and all executors",
            path,
        ) from None
    if not content:
        raise _fault(name, "is an empty file", value=path)
    return content


def _fault(name: str, wrong: str, right: str = "", value: str | None = None) -> OptionsError:
    faults = Faults()
    faults.add(f"kafka.{name}", value, wrong, right)
    return OptionsError(faults.problems)
