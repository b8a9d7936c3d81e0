"""Trust stores: the certificates that brokers must lead to.

Guarantee: they are PEM, for every kind of store; a store is read by what its bytes are, since Java
too opens PKCS#12 under the name of JKS.
"""

from kshare.options.frozen import Properties
from kshare.security import jks
from kshare.security.store_files import (
    JCEKS_MAGIC,
    jks_entries,
    pem_armour,
    pem_certificates,
    read_file,
    store_fault,
)

__all__ = ["trust_store"]


def trust_store(properties: Properties) -> str | None:
    """Read the certificates that brokers must lead to from where ``ssl.truststore.*`` says.

    Args:
        properties: Java's, without ``kafka.``.

    Returns:
        PEM; None if the system's authorities are trusted.

    Raises:
        OptionsError: The store cannot be read, or its password is wrong.
    """
    inline, where = "ssl.truststore.certificates", "ssl.truststore.location"
    if inline in properties:
        return pem_certificates(properties[inline], inline)
    if where not in properties:
        return None
    content = read_file(properties[where], where)
    if properties.get("ssl.truststore.type", "").strip().upper() == "PEM":
        return pem_certificates(content.decode("latin-1"), where)
    if content.startswith(JCEKS_MAGIC):
        raise store_fault(where, "is a JCEKS store", "convert it to PKCS12 with keytool")
    if content.startswith(jks.JKS_MAGIC):
        entries = jks_entries(content, properties, "ssl.truststore")
        certificates = [
            pem_armour(entry.certificates[0]) for entry in entries if entry.certificates
        ]
    else:
        # Only this kind of store needs cryptography: 130 ms.
        from kshare.security.key_store import pkcs12_certificates  # noqa: PLC0415

        certificates = pkcs12_certificates(content, properties, "ssl.truststore")
    if not certificates:
        raise store_fault(where, "holds no certificate")
    return "".join(certificates)
