"""Key stores: PEM, PKCS#12 and JKS. Imports ``cryptography``, which takes 130 ms.

Guarantee: the result is PEM, for every kind of store; a store is read by what its bytes are, since
Java too opens PKCS#12 under the name of JKS. Cost: a file and a key derivation each time.
"""

import base64
from dataclasses import dataclass
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

from kshare.options.frozen import HIDDEN, Properties
from kshare.security import jks
from kshare.security.store_files import (
    JCEKS_MAGIC,
    PEM_BLOCK,
    jks_entries,
    pem_armour,
    pem_certificates,
    read_file,
    store_fault,
)

__all__ = ["KeyStore", "key_store", "pkcs12_certificates"]

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
        cipher = s.BestAvailableEncryption(password.encode()) if password else s.NoEncryption()
        pem: bytes = self.key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, cipher)
        return pem.decode()


def key_store(properties: Properties) -> KeyStore:
    """Read the client's certificate and key from where ``ssl.keystore.*`` says.

    Args:
        properties: Java's, without ``kafka.``; a key store is among them.

    Raises:
        OptionsError: The store cannot be read, or its password is wrong.
    """
    password = properties.get("ssl.key.password")
    if "ssl.keystore.key" in properties:
        key = _pem_key(properties["ssl.keystore.key"], password, "ssl.keystore.key")
        chain = pem_certificates(
            properties.get("ssl.keystore.certificate.chain", ""), "ssl.keystore.certificate.chain"
        )
        return _matched(key, chain, "ssl.keystore.certificate.chain")
    where = "ssl.keystore.location"
    content = read_file(properties[where], where)
    if properties.get("ssl.keystore.type", "").strip().upper() == "PEM":
        text = content.decode("latin-1")
        return _matched(_pem_key(text, password, where), pem_certificates(text, where), where)
    if content.startswith(JCEKS_MAGIC):
        right = _KEYTOOL.format(properties[where])
        raise store_fault(where, "is a JCEKS key store, which kshare does not read", right)
    if content.startswith(jks.JKS_MAGIC):
        return _jks_keys(content, properties)
    store = _pkcs12(content, properties, "ssl.keystore")
    if store.key is None or store.cert is None:
        raise store_fault(where, _NO_KEY)
    others = [entry.certificate for entry in store.additional_certs]
    certificates = _chain(store.cert.certificate, others)
    return KeyStore("".join(_pem(certificate) for certificate in certificates), store.key)


def pkcs12_certificates(content: bytes, properties: Properties, kind: str) -> list[str]:
    """Return the certificates of a PKCS#12 store as PEM.

    Args:
        content: The store.
        properties: Java's, without ``kafka.``.
        kind: The properties of the store: ``ssl.truststore`` or ``ssl.keystore``.

    Raises:
        OptionsError: The store cannot be opened.
    """
    store = _pkcs12(content, properties, kind)
    bags = ([store.cert] if store.cert else []) + list(store.additional_certs)
    return [_pem(bag.certificate) for bag in bags]


def _pem_key(text: str, password: str | None, name: str) -> Any:
    blocks = [(match[1], match[2], match[0]) for match in PEM_BLOCK.finditer(text)]
    keys = [(label, body, whole) for label, body, whole in blocks if label.endswith("PRIVATE KEY")]
    if len(keys) != 1:
        raise store_fault(
            name, f"holds {len(keys) or 'no'} private keys in PEM format; exactly one is wanted"
        )
    label, body, whole = keys[0]
    encrypted = label.startswith("ENCRYPTED") or "ENCRYPTED" in body
    if encrypted and password is None:
        raise store_fault("ssl.key.password", f"must be specified, the key in {name} is encrypted")
    try:
        pem = whole if ":" in body else pem_armour(base64.b64decode("".join(body.split())), label)
        return s.load_pem_private_key(pem.encode(), password.encode() if encrypted else None)  # type: ignore[union-attr]
    except Exception:
        # No text of the library's: it may hold a piece of what it could not read.
        if encrypted:
            raise store_fault("ssl.key.password", f"does not open the key in {name}") from None
        raise store_fault(name, _UNREADABLE_KEY) from None


def _matched(key: Any, chain: str, name: str) -> KeyStore:
    """Key and certificate, if they belong together."""
    try:
        first, *others = x509.load_pem_x509_certificates(chain.encode())
        belongs = first.public_key() == key.public_key()
    except Exception:  # of several kinds: what is damaged, what is of an unknown algorithm
        raise store_fault(name, "holds a certificate that cannot be read") from None
    if not belongs:
        raise store_fault(name, "begins with a certificate that is not the private key's")
    return KeyStore("".join(_pem(certificate) for certificate in (first, *others)), key)


def _pkcs12(content: bytes, properties: Properties, kind: str) -> Any:
    password = properties.get(f"{kind}.password")
    if not content.startswith(b"\x30"):
        raise store_fault(
            f"{kind}.location", "is neither PKCS#12 nor JKS", f"set kafka.{kind}.type=PEM?"
        )
    try:
        return load_pkcs12(content, None if password is None else password.encode())
    except Exception:  # of several kinds, some with the bytes in their text
        wrong = "does not open the store, or the store is damaged"
        if password is None:
            wrong = "must be specified, the store cannot be read without it"
        raise store_fault(f"{kind}.password", wrong) from None


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
    pem: bytes = certificate.public_bytes(s.Encoding.PEM)
    return pem.decode()


def _jks_keys(content: bytes, properties: Properties) -> KeyStore:
    """The one key of a store; of several, Java takes the first that suits the broker."""
    where, own, stores = "ssl.keystore.location", "ssl.key.password", "ssl.keystore.password"
    path = properties[where]
    if stores not in properties:
        raise store_fault(stores, "must be specified, the store cannot be read without it")
    entries = jks_entries(content, properties, "ssl.keystore")
    keys = [
        (entry, entry.protected)
        for entry in entries
        if entry.protected is not None and entry.certificates
    ]
    if not keys:
        raise store_fault(where, _NO_KEY)
    if len(keys) > 1:
        aliases = ", ".join(repr(entry.alias[:40]) for entry, _ in keys[:8])
        wrong = f"holds {len(keys)} private keys (aliases: {aliases}); exactly one is wanted"
        raise store_fault(where, wrong, _KEYTOOL_ONE.format(path))
    entry, protected = keys[0]
    used = own if own in properties else stores  # as Kafka's DefaultSslEngineFactory
    try:
        key = jks.private_key(protected, properties[used])
    except jks.WrongPasswordError:
        if used == own:
            raise store_fault(own, f"does not open the key in {where}") from None
        raise store_fault(
            stores, "does not open the key in the store", f"set kafka.{own}"
        ) from None
    except jks.UnknownProtectionError:
        wrong = "holds a private key that is protected in another way than Java's own"
        right = f"with the Java that made it, {_KEYTOOL.format(path)}"
        raise store_fault(where, wrong, right) from None
    except jks.DamagedStoreError:
        raise store_fault(where, _UNREADABLE_KEY) from None
    chain = "".join(pem_armour(der) for der in entry.certificates)
    return _matched(_der_key(key, where), chain, where)


def _der_key(der: bytes, name: str) -> Any:
    try:
        return s.load_der_private_key(der, None)
    except Exception:  # of several kinds, some with the bytes in their text
        raise store_fault(name, _UNREADABLE_KEY) from None
