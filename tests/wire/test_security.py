"""Stores, TLS, SASL and tokens, against servers in this process and stores that keytool made."""

import base64
import contextlib
import hashlib
import hmac
import json
import pickle
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives import serialization as s
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from kshare.errors import AuthenticationError, OptionsError
from kshare.options import KafkaConfig, parse_options
from kshare.options.frozen import Properties
from kshare.wire.connection import Connection
from kshare.wire.security import oauth
from kshare.wire.security.librdkafka import librdkafka_config
from kshare.wire.security.sasl import sasl_mechanism
from kshare.wire.security.stores import key_store, trust_store
from kshare.wire.security.tls import context_of, ssl_context
from tests.option_helpers import SECRET
from tests.wire.certificates import Pair, jks_key, jks_of, make, pkcs12_of

PASSWORD = "changeit"
# Made by keytool of OpenJDK 17: an authority as trusted entry, and with its key.
KEYTOOL_DER = (
    "MIIBMzCB2qADAgECAgkAugyTvrlCMyEwCgYIKoZIzj0EAwIwDTELMAkGA1UEAxMCY2EwIBcNMjYxMTIxMTQzMjUx"
    "WhgPMjEyNjEwMjgxNDMyNTFaMA0xCzAJBgNVBAMTAmNhMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAENOWKC8XS"
    "841v4bq3B3qGUNMkSGgXHcXT5MhRuSAB2IoQcVLH58vUqvgQJB4G1m7W1PGV3wbQdUMP2MFSDcUQYqMhMB8wHQYD"
    "VR0OBBYEFKqOZNH6SU7I3mO5zATyiLanJdjdMAoGCCqGSM49BAMCA0gAMEUCIQCTUaQ5cp4V4acmOYt829jMLpaX"
    "AqUscuvcz2nWG8aAzwIgGvBJSlcKyrpI4BIe1lxQy7QUdhGkha8kXyS56bFM1PE="
)
KEYTOOL_TRUST = {
    "JKS": (
        "/u3+7QAAAAIAAAABAAAAAgAEcm9vdAAAAaH+hj4TAAVYLjUwOQAAATcwggEzMIHaoAMCAQICCQC6DJO+uUIzITAK"
        "BggqhkjOPQQDAjANMQswCQYDVQQDEwJjYTAgFw0yNjExMjExNDMyNTFaGA8yMTI2MTAyODE0MzI1MVowDTELMAkG"
        "A1UEAxMCY2EwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQ05YoLxdLzjW/hurcHeoZQ0yRIaBcdxdPkyFG5IAHY"
        "ihBxUsfny9Sq+BAkHgbWbtbU8ZXfBtB1Qw/YwVINxRBioyEwHzAdBgNVHQ4EFgQUqo5k0fpJTsjeY7nMBPKItqcl"
        "2N0wCgYIKoZIzj0EAwIDSAAwRQIhAJNRpDlynhXhpyY5i3zb2MwulpcCpSxy69zPadYbxoDPAiAa8ElKVwrKukjg"
        "Eh7WXFDLtBR2EaSFryRfJLnpsUzU8UpaKVkO/BN4rWtUK7ewgHwked35"
    ),
    "PKCS12": (
        "MIICogIBAzCCAkwGCSqGSIb3DQEHAaCCAj0EggI5MIICNTCCAjEGCSqGSIb3DQEHBqCCAiIwggIeAgEAMIICFwYJ"
        "KoZIhvcNAQcBMGYGCSqGSIb3DQEFDTBZMDgGCSqGSIb3DQEFDDArBBTwZ4KasMjfA1FAMASrix7aiInHCAICJxAC"
        "ASAwDAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEJvmO3EasRAlWF66zD++Q1+AggGg1Z3LkWuiUmYNi8hwIZcL"
        "LVqq6cDdYE3AT57fLcwAXUVgve57eHH3STRzwcTwQ4vzzA7c0vD/OMvyfd2o/JvUoQfj5MKdSQqNDUjfIRtAPZXZ"
        "E2dNUa6nWXJQwBuMyvEk1TnIzFbs+2yYh0FSSfyh0tFFfZJA9+2CBNCAzPZIE4jSQB8m2/Cr8aawfdbzdDkDTebm"
        "81X++NIyGvJCqzbNW6TmuThaTfFs6XRur8yqbUUI06efw0QG6AdCaegmsQky8Zwh4y/MVhGEnP8ZSPfdRxACpg3X"
        "GnkSW3VLRoVzZuEaBBdNQe9oE6iYil3vweTAD+/cPsdlcNHGI8UfYN9K3mvC47hWNLfbaHX8BofAsY01m6QBtIIV"
        "C3heDoXKz25znLUvYHjwSP/dnpbt2DLyvTgfxkkKE0r1rqmXO33MjyqPqOq+Y7BEtgw1IkPrHu0IYpBVJ/ZWriVy"
        "9EZMMjg2CsS8/lR8VCezAlGcZs3wEnu/FAoQpZmKFGHXvManr/8M0S898EqDhj4pIMYoeIjK3wlDlOoE1MQy5VmW"
        "LuBuwyAwTTAxMA0GCWCGSAFlAwQCAQUABCD2NyEtHsLHJY/5Per7tCjTFdHiBvoUbbnnGwkIa61nYAQULPr6YqTZ"
        "wEQUq4AkfYydJMYiy2ICAicQ"
    ),
    "JKS key entry": (
        "/u3+7QAAAAIAAAABAAAAAQACY2EAAAGh/oY4QAAAAH8wfTAOBgorBgEEASoCEQEBBQAEaz31nPtrTL6wLn3oWRc4"
        "k+pryv3KRpOW7NSagP9/mhkQmj74T5uWcODm2OXpf3mahhIfHfJwEEDrMEHteOmZzF6Kw92jhzZnY9FXE0teb0ka"
        "dVS+L8wav6vqo1z5azB9ZVA23UTbzkIl02JZAAAAAQAFWC41MDkAAAE3MIIBMzCB2qADAgECAgkAugyTvrlCMyEw"
        "CgYIKoZIzj0EAwIwDTELMAkGA1UEAxMCY2EwIBcNMjYxMTIxMTQzMjUxWhgPMjEyNjEwMjgxNDMyNTFaMA0xCzAJ"
        "BgNVBAMTAmNhMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAENOWKC8XS841v4bq3B3qGUNMkSGgXHcXT5MhRuSAB"
        "2IoQcVLH58vUqvgQJB4G1m7W1PGV3wbQdUMP2MFSDcUQYqMhMB8wHQYDVR0OBBYEFKqOZNH6SU7I3mO5zATyiLan"
        "JdjdMAoGCCqGSM49BAMCA0gAMEUCIQCTUaQ5cp4V4acmOYt829jMLpaXAqUscuvcz2nWG8aAzwIgGvBJSlcKyrpI"
        "4BIe1lxQy7QUdhGkha8kXyS56bFM1PEWKuBBNbTDwQ5uh7HKDhVXVP5lzw=="
    ),
}
KEYTOOL_KEYS = (
    "MIID2AIBAzCCA4IGCSqGSIb3DQEHAaCCA3MEggNvMIIDazCCASIGCSqGSIb3DQEHAaCCARMEggEPMIIBCzCCAQcG"
    "CyqGSIb3DQEMCgECoIG9MIG6MGYGCSqGSIb3DQEFDTBZMDgGCSqGSIb3DQEFDDArBBRt/RqmVQIt4AySKEaAvIr9"
    "aW65swICJxACASAwDAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEDaB0exJxz+Fjqdr0nTnjU0EUJzGShp0tUis"
    "FIBNVIBCmA1r2shwNJ636rlqOgv+RSVBH6Kn1ZSZuSutcrTQO28gdHTWGGf/phTJ8A9WrY80OiwEJBOVX9AJG1Ep"
    "sw4fitl+MTgwEwYJKoZIhvcNAQkUMQYeBABjAGEwIQYJKoZIhvcNAQkVMRQEElRpbWUgMTc5NTI3MTU3NDg3OTCC"
    "AkEGCSqGSIb3DQEHBqCCAjIwggIuAgEAMIICJwYJKoZIhvcNAQcBMGYGCSqGSIb3DQEFDTBZMDgGCSqGSIb3DQEF"
    "DDArBBT4a0W0QJZEFRPSQxo4b39G8Ls6SgICJxACASAwDAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEKdtHd9z"
    "0Da8gxveRIuLQhCAggGwXum1Y9PVEe3ercVEKviC8J9udTX5gE02tX1GuNjS7ib6XZOh0yz11OT5GmQ4gH0hNLN3"
    "bmMF1NkWmXHO6UC40dbBDzIIS2n6zwsGUtF5Dmi7rsF2+gWuLnIrVUmpLewT5UuxmU2LFxpe/NFSj2VDuIZ3PEPH"
    "PbatIPKJYWdSVeoKylpsbpx1fdF6S1j7tdIchJSkeaCKl8ZWHwa0/98v24uGWRc3ggsexYly3QOsYP29JT6RnV4I"
    "T55+o5Ase7J/0KigBjHTh2YiazGODBxv+fsfW2MxUT3j7fYAQynnvey8WgUZSFSvKUR6eew6/tL51VX+tMfyUu6h"
    "ojuXZW/dKT7lkN1z9/PaXrd1bHqaNdp12y0U51UYhKUocptbdZjj5Fad4MQJCXWQ/bq9XrFExL5+ZUSNWfxgKdpu"
    "DcSB/4MGbgLzj3dhRsXV9E5ta6cyMGSKdScFP18+AclUbePUIqYGQYOcilZxCcgEsplh2id0xEXxgiU6rwP5axef"
    "jYT7oQdu5hfbXmolMW065RJoOWMKhsmhQuXO7CiBU1vYHvDu6+4lxhQSLMKcYRDLOHbPME0wMTANBglghkgBZQME"
    "AgEFAAQgg/XKrtzwDgHUk04ZmgL+9yDdnFs9LT4aI4ytIWMmZm4EFDmu0B1hhpo5Qc6oJO7EJ6xznfbTAgInEA=="
)


@pytest.fixture(scope="module")
def authority() -> Pair:
    return make("authority", authority=True)


@pytest.fixture(scope="module")
def middle(authority: Pair) -> Pair:
    return make("middle", authority, authority=True)


@pytest.fixture(scope="module")
def server_pair(authority: Pair) -> Pair:
    return make("localhost", authority)


@pytest.fixture(scope="module")
def client(middle: Pair) -> Pair:
    return make("client", middle)


def properties(**given_: str) -> Properties:
    """Properties of ``ssl``; dots of names are written as two underscores."""
    return Properties({f"ssl.{name.replace('__', '.')}": text for name, text in given_.items()})


def refused(call: Callable[[], object]) -> str:
    """The one fault of a store that is refused; it holds no secret."""
    with pytest.raises(OptionsError) as caught:
        call()
    (found,) = caught.value.problems
    assert SECRET not in str(caught.value)
    return found


def config(protocol: str = "PLAINTEXT", server: str = "127.0.0.1:9", **more: str) -> KafkaConfig:
    """The configuration of parsed options; dots of names are written as two underscores."""
    given_ = {f"kafka.{name.replace('__', '.')}": text for name, text in more.items()}
    given_ |= {"kafka.bootstrap.servers": server, "kafka.security.protocol": protocol}
    return parse_options({"subscribe": "t", **given_}, streaming=True).options.kafka


def ders(pem: str | None) -> list[bytes]:
    assert pem is not None
    end = "-----END CERTIFICATE-----\n"
    return [ssl.PEM_cert_to_DER_cert(part + end) for part in pem.split(end)[:-1]]


# -- trust stores ---------------------------------------------------------------------------------


def test_without_a_store_the_system_is_trusted() -> None:
    assert trust_store(Properties()) is None
    assert key_store(Properties()) is None


@pytest.mark.parametrize("kind", sorted(KEYTOOL_TRUST))
@pytest.mark.parametrize("named", ["JKS", "PKCS12"])
def test_stores_of_keytool_are_read_under_either_name(
    kind: str, named: str, tmp_path: Path
) -> None:
    path = tmp_path / "trust"
    path.write_bytes(base64.b64decode(KEYTOOL_TRUST[kind]))
    given_ = properties(
        truststore__location=str(path), truststore__type=named, truststore__password=PASSWORD
    )
    assert ders(trust_store(given_)) == [base64.b64decode(KEYTOOL_DER)]
    wrong = Properties({**given_, "ssl.truststore.password": SECRET})
    assert refused(lambda: trust_store(wrong)) == (
        "kafka.ssl.truststore.password: does not open the store, or the store is damaged"
    )


def test_pem_of_any_shape_is_read(authority: Pair, server_pair: Pair, tmp_path: Path) -> None:
    both = f"subject=x\n{authority.pem}\n# and\n{server_pair.pem}"
    expected = [authority.der, server_pair.der]
    path = tmp_path / "trust.pem"
    path.write_text(both)
    in_file = properties(truststore__location=str(path), truststore__type="PEM")
    assert ders(trust_store(in_file)) == expected
    for text in (both, both.replace("\n", " "), both.replace("\n", "\r\n")):
        inline = properties(truststore__certificates=text, truststore__type="PEM")
        assert ders(trust_store(inline)) == expected


def test_pkcs12_without_keys(authority: Pair, server_pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "trust.p12"
    path.write_bytes(pkcs12_of(None, [authority, server_pair], SECRET))
    given_ = properties(truststore__location=str(path), truststore__type="PKCS12")
    assert refused(lambda: trust_store(given_)) == (
        "kafka.ssl.truststore.password: must be specified, the store cannot be read without it"
    )
    opened = Properties({**given_, "ssl.truststore.password": SECRET})
    assert ders(trust_store(opened)) == [authority.der, server_pair.der]


@pytest.mark.parametrize(
    ("content", "kind", "says"),
    [
        (None, "JKS", "location: cannot be read here: No such file or directory (given: "),
        (b"", "JKS", "location: is an empty file"),
        (b"text", "PEM", "location: holds no certificate in PEM format"),
        (b"text", "PKCS12", "location: is neither PKCS#12 nor JKS"),
        (b"\x30text", "PKCS12", "password: must be specified"),
        (b"\xce\xce\xce\xce", "JKS", "location: is a JCEKS store"),
        (b"\xfe\xed\xfe\xed", "JKS", "location: is a damaged JKS store"),
        (jks_of([], "p"), "JKS", "location: holds no certificate"),
        (
            b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----",
            "PEM",
            "location: has a certificate that is no Base64",
        ),
    ],
)
def test_a_trust_store_that_cannot_be_read(
    content: bytes | None, kind: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "trust"
    if content is not None:
        path.write_bytes(content)
    given_ = properties(truststore__location=str(path), truststore__type=kind)
    assert refused(lambda: trust_store(given_)).startswith(f"kafka.ssl.truststore.{says}")


# -- key stores -----------------------------------------------------------------------------------


def test_a_key_store_of_keytool_is_read(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(base64.b64decode(KEYTOOL_KEYS))
    found = key_store(properties(keystore__location=str(path), keystore__password=PASSWORD))
    assert found is not None
    assert ders(found.certificates) == [base64.b64decode(KEYTOOL_DER)]


@pytest.mark.parametrize("turned", [False, True])
def test_a_chain_is_put_in_order(
    turned: bool, client: Pair, middle: Pair, authority: Pair, tmp_path: Path
) -> None:
    path = tmp_path / "keys.p12"
    others = [authority, make("stranger"), middle]
    path.write_bytes(pkcs12_of(client, others[::-1] if turned else others, SECRET))
    found = key_store(properties(keystore__location=str(path), keystore__password=SECRET))
    assert found is not None
    assert ders(found.certificates) == [client.der, middle.der, authority.der]
    assert found.key.private_numbers() == client.key.private_numbers()
    assert repr(found) == "KeyStore(<hidden>)"


@pytest.mark.parametrize("password", [None, SECRET])
@pytest.mark.parametrize("form", [s.PrivateFormat.PKCS8, s.PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize("inline", [True, False])
def test_keys_in_pem(
    password: str | None,
    form: s.PrivateFormat,
    inline: bool,
    client: Pair,
    middle: Pair,
    tmp_path: Path,
) -> None:
    key, chain = client.key_pem(password, form), client.pem + middle.pem
    given_ = {"ssl.keystore.type": "PEM"}
    if password:
        given_["ssl.key.password"] = password
    if inline:
        one_line = key if "Proc-Type" in key else key.replace("\n", " ")
        given_ |= {"ssl.keystore.key": one_line, "ssl.keystore.certificate.chain": chain}
    else:
        path = tmp_path / "keys.pem"
        path.write_text(chain + key)
        given_["ssl.keystore.location"] = str(path)
    found = key_store(Properties(given_))
    assert found is not None
    assert ders(found.certificates) == [client.der, middle.der]
    assert s.load_pem_private_key(found.key_pem().encode(), None)
    encrypted = found.key_pem("other")
    assert "ENCRYPTED" in encrypted
    if password:
        wrong = {**given_, "ssl.key.password": "wrong"}
        assert refused(lambda: key_store(Properties(wrong))).startswith(
            "kafka.ssl.key.password: does not open the key in ssl.keystore."
        )
        del given_["ssl.key.password"]
        assert refused(lambda: key_store(Properties(given_))).startswith(
            "kafka.ssl.key.password: must be specified, the key in ssl.keystore."
        )


def test_a_key_store_that_cannot_be_used(client: Pair, middle: Pair, tmp_path: Path) -> None:
    def inline(key: str, chain: str) -> Properties:
        return properties(keystore__key=key, keystore__certificate__chain=chain)

    key = client.key_pem()
    assert refused(lambda: key_store(inline(key, middle.pem))) == (
        "kafka.ssl.keystore.certificate.chain: begins with a certificate that is not the private "
        "key's"
    )
    assert "holds no private keys" in refused(lambda: key_store(inline(SECRET, client.pem)))
    assert "holds 2 private keys" in refused(lambda: key_store(inline(key * 2, client.pem)))
    assert "holds no certificate" in refused(lambda: key_store(inline(key, SECRET)))
    broken = f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----"
    assert "that cannot be read" in refused(lambda: key_store(inline(broken, client.pem)))
    damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"
    assert "certificate that cannot be read" in refused(lambda: key_store(inline(key, damaged)))
    path = tmp_path / "trust.p12"
    path.write_bytes(pkcs12_of(None, [client], SECRET))
    without = properties(keystore__location=str(path), keystore__password=SECRET)
    assert "holds no private key" in refused(lambda: key_store(without))


# -- TLS ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server on a port of its own; each connection is served in turn."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError, ValueError):
                    connection.settimeout(20)
                    serve(connection)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def tls_server(
    pair: Pair, tmp_path: Path, *, clients: Pair | None = None, then: Any = None
) -> Callable[[socket.socket], None]:
    """What serves TLS, and then says hello or something else."""
    path = tmp_path / "server.pem"
    path.write_text(pair.pem + pair.key_pem())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients.pem)

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            if then is not None:
                then(secured)
            else:
                secured.sendall(b"hello")

    return serve


def greeted(port: int, host: str, context: ssl.SSLContext) -> bytes:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return secured.recv(5)


def test_a_trusted_server_is_spoken_to(server_pair: Pair, authority: Pair, tmp_path: Path) -> None:
    with listening(tls_server(server_pair, tmp_path)) as port:
        for trusted in (authority.pem, server_pair.pem):
            context = context_of(properties(truststore__certificates=trusted))
            assert greeted(port, "localhost", context) == b"hello"
            assert greeted(port, "127.0.0.1", context) == b"hello"


def test_a_client_shows_its_certificate(
    server_pair: Pair, authority: Pair, client: Pair, middle: Pair, tmp_path: Path
) -> None:
    serve = tls_server(server_pair, tmp_path, clients=authority)
    trusted = properties(truststore__certificates=authority.pem)
    shown = {
        "ssl.keystore.key": client.key_pem(SECRET),
        "ssl.key.password": SECRET,
        "ssl.keystore.certificate.chain": client.pem + middle.pem,
    }
    path = tmp_path / "keys.jks"
    path.write_bytes(jks_of([], "store", [jks_key(client, [middle], SECRET)]))
    stored = {
        "ssl.keystore.location": str(path),
        "ssl.keystore.password": "store",
        "ssl.key.password": SECRET,
    }
    with listening(serve) as port:
        for given_ in (shown, stored):
            context = context_of(Properties({**trusted, **given_}))
            assert greeted(port, "localhost", context) == b"hello"
        with pytest.raises(ssl.SSLError):
            greeted(port, "localhost", context_of(trusted))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keys.jks", "server.pem"]


@pytest.mark.parametrize("versions", ["TLSv1.2", "TLSv1.3", "TLSv1.3,TLSv1.2"])
def test_versions_of_tls(versions: str) -> None:
    context = context_of(properties(enabled__protocols=versions))
    names = sorted(version.strip() for version in versions.split(","))
    assert [context.minimum_version.name, context.maximum_version.name] == [
        names[0].replace(".", "_"),
        names[-1].replace(".", "_"),
    ]
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname


def test_no_context_without_tls() -> None:
    assert ssl_context(config()) is None
    assert ssl_context(config("SSL")) is not None


def test_certificates_that_openssl_does_not_take_are_refused() -> None:
    damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"
    found = refused(lambda: context_of(properties(truststore__certificates=damaged)))
    assert found == "kafka.ssl.truststore.*: holds a certificate that cannot be read"


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("unknown", "its certificate was not accepted: unable to get local issuer certificate"),
        ("expired", "its certificate was not accepted: certificate has expired"),
        ("host", "its certificate was not accepted: IP address mismatch"),
        ("self", "its certificate was not accepted: self-signed certificate"),
    ],
)
def test_why_a_broker_is_not_believed(
    case: str, says: str, authority: Pair, tmp_path: Path
) -> None:
    pair = {
        "unknown": make("localhost", make("stranger", authority=True)),
        "expired": make("localhost", authority, days=-1),
        "host": make("elsewhere", authority),
        "self": make("localhost"),
    }[case]
    with listening(tls_server(pair, tmp_path)) as port:
        kafka = config(
            "SSL", ssl__truststore__certificates=authority.pem, ssl__truststore__type="PEM"
        )
        with pytest.raises(AuthenticationError) as caught:
            Connection("127.0.0.1", port, kafka)
    assert says in str(caught.value)
    assert caught.value.broker == f"127.0.0.1:{port}"


def test_any_name_is_believed_if_the_user_says_so(authority: Pair, tmp_path: Path) -> None:
    name = "ssl.endpoint.identification.algorithm"
    given_ = Properties({"ssl.truststore.certificates": authority.pem, name: ""})
    with listening(tls_server(make("elsewhere", authority), tmp_path)) as port:
        assert greeted(port, "localhost", context_of(given_)) == b"hello"
    with (
        listening(tls_server(make("elsewhere"), tmp_path)) as port,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        greeted(port, "localhost", context_of(given_))


# -- SASL -----------------------------------------------------------------------------------------

PACKAGE = "org.apache.kafka.common.security"


def login(mechanism: str, user: str = "u", password: str = SECRET, **more: str) -> KafkaConfig:
    """A configuration to log in with."""
    kind = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    escaped = password.replace("\\", "\\\\").replace('"', '\\"')
    line = f'{PACKAGE}.{kind} required username="{user}" password="{escaped}";'
    return config("SASL_PLAINTEXT", sasl__mechanism=mechanism, sasl__jaas__config=line, **more)


def test_no_mechanism_without_sasl() -> None:
    assert sasl_mechanism(config()) is None


@pytest.mark.parametrize("password", [SECRET, 'p=,\\" ü'])
def test_plain_is_that_of_rfc_4616(password: str) -> None:
    mechanism = sasl_mechanism(login("PLAIN", "ä,b=", password))
    _, user, sent = mechanism.auth_bytes().split(b"\0")
    assert (user.decode(), sent.decode()) == ("ä,b=", password)
    mechanism.receive(b"")
    assert mechanism.is_done()


class ScramServer:
    """The other side of RFC 5802."""

    def __init__(self, mechanism: str, user: str, password: str) -> None:
        self._hash = mechanism.removeprefix("SCRAM-").lower().replace("-", "")
        self._user = user
        self._salt = b"salt"
        self._salted = hashlib.pbkdf2_hmac(self._hash, password.encode(), self._salt, 4096)

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)

    def first(self, message: bytes) -> bytes:
        header, _, self._bare = message.partition(b"n,,")
        assert header == b""
        user, nonce = self._bare.decode().split(",")
        assert user == f"n={self._user}"
        self._nonce = f"{nonce[2:]}server"
        salt = base64.b64encode(self._salt).decode()
        self._answer = f"r={self._nonce},s={salt},i=4096".encode()
        return self._answer

    def final(self, message: bytes) -> bytes | None:
        """The proof of the server, if the client's is right."""
        without, _, proof = message.rpartition(b",p=")
        assert without.decode() == f"c=biws,r={self._nonce}"
        signed = b",".join((self._bare, self._answer, without))
        key = self._hmac(self._salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._hash, key).digest(), signed)
        if bytes(a ^ b for a, b in zip(key, signature, strict=True)) != base64.b64decode(proof):
            return None
        server = self._hmac(self._hmac(self._salted, b"Server Key"), signed)
        return b"v=" + base64.b64encode(server)


@pytest.mark.parametrize("name", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize(("user", "sent"), [("u", "u"), ("a=b,c", "a=3Db=2Cc"), ("ü", "ü")])
def test_scram_is_that_of_rfc_5802(name: str, user: str, sent: str) -> None:
    server = ScramServer(name, sent, SECRET)
    mechanism = sasl_mechanism(login(name, user))
    mechanism.receive(server.first(mechanism.auth_bytes()))
    proof = server.final(mechanism.auth_bytes())
    assert proof is not None
    mechanism.receive(proof)
    assert mechanism.is_done()
    other = ScramServer(name, sent, "other")
    mechanism = sasl_mechanism(login(name, user))
    mechanism.receive(other.first(mechanism.auth_bytes()))
    assert other.final(mechanism.auth_bytes()) is None
    with pytest.raises(ValueError, match="signature"):
        mechanism.receive(b"v=" + base64.b64encode(b"wrong"))


def sasl_broker(
    mechanisms: list[str], answer: Callable[[bytes], tuple[int, str | None, bytes]]
) -> Callable[[socket.socket], None]:
    """A broker that knows nothing but a login."""
    from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

    def read(connection: socket.socket, count: int) -> bytes:
        got = b""
        while len(got) < count:
            part = connection.recv(count - len(got))
            if not part:
                raise OSError("closed")
            got += part
        return got

    def serve(connection: socket.socket) -> None:
        while True:
            (size,) = struct.unpack(">i", read(connection, 4))
            frame = read(connection, size)
            key, version, correlation, client_id = struct.unpack_from(">hhih", frame)
            body = frame[10 + client_id :]
            response: Any
            if key == ApiVersionsRequest.API_KEY:
                kinds = (ApiVersionsRequest, SaslHandshakeRequest, SaslAuthenticateRequest)
                keys = [
                    ApiVersionsResponse.ApiVersion(api_key=k.API_KEY, min_version=0, max_version=1)
                    for k in kinds
                ]
                response = ApiVersionsResponse(version=version, error_code=0, api_keys=keys)
            elif key == SaslHandshakeRequest.API_KEY:
                (length,) = struct.unpack_from(">h", body)
                known = body[2 : 2 + length].decode() in mechanisms
                response = SaslHandshakeResponse(
                    version=version, error_code=0 if known else 33, mechanisms=mechanisms
                )
            else:
                code, message, reply = answer(body[4:])
                response = SaslAuthenticateResponse(
                    version=version, error_code=code, error_message=message, auth_bytes=reply
                )
            encoded = response.encode()
            connection.sendall(struct.pack(">ii", len(encoded) + 4, correlation) + encoded)

    return serve


def test_a_login_that_succeeds_and_one_that_does_not() -> None:
    def answer(sent: bytes) -> tuple[int, str | None, bytes]:
        good = sent.split(b"\0")[1:] == [b"u", SECRET.encode()]
        return (0, None, b"") if good else (58, "Authentication failed: Invalid username", b"")

    with listening(sasl_broker(["PLAIN"], answer)) as port:
        Connection("127.0.0.1", port, login("PLAIN")).close()
        with pytest.raises(AuthenticationError) as caught:
            Connection("127.0.0.1", port, login("PLAIN", password=SECRET + "x"))
        assert f"127.0.0.1:{port} refused SASL PLAIN: Authentication failed" in str(caught.value)
        assert SECRET not in str(caught.value)
        with pytest.raises(AuthenticationError, match="it offers: PLAIN"):
            Connection("127.0.0.1", port, login("SCRAM-SHA-256"))


def test_a_broker_that_does_not_know_the_password_either() -> None:
    server = ScramServer("SCRAM-SHA-256", "u", "other")

    def answer(sent: bytes) -> tuple[int, str | None, bytes]:
        if sent.startswith(b"n,,"):
            return 0, None, server.first(sent)
        return 0, None, b"v=" + base64.b64encode(b"pretended")

    with (
        listening(sasl_broker(["SCRAM-SHA-256"], answer)) as port,
        pytest.raises(AuthenticationError, match="does not prove that it knows"),
    ):
        Connection("127.0.0.1", port, login("SCRAM-SHA-256"))


# -- tokens ---------------------------------------------------------------------------------------

OAUTH = f"{PACKAGE}.oauthbearer.OAuthBearerLoginModule required"


def bearer(line: str = "", **more: str) -> KafkaConfig:
    """A configuration with OAUTHBEARER."""
    return config(
        "SASL_PLAINTEXT",
        sasl__mechanism="OAUTHBEARER",
        sasl__jaas__config=f"{OAUTH} {line};",
        **more,
    )


def jwt(**claims: Any) -> str:
    """A token that nobody signed."""
    parts = [json.dumps({"alg": "none"}), json.dumps(claims)]
    encoded = [base64.urlsafe_b64encode(part.encode()).rstrip(b"=").decode() for part in parts]
    return f"{encoded[0]}.{encoded[1]}.x"


def claims_of(token: str) -> Any:
    payload = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


def test_an_unsecured_token_says_what_the_line_says() -> None:
    line = (
        'unsecuredLoginStringClaim_sub="me" unsecuredLoginNumberClaim_n="5" '
        'unsecuredLoginListClaim_scope="|a|b" unsecuredLoginLifetimeSeconds="60" '
        'unsecuredLoginExtension_traceId="7"'
    )
    before = time.time()
    token = oauth.obtain(bearer(line))
    claims = claims_of(token.value.reveal())
    assert token.value.reveal().endswith(".")
    assert {name: claims[name] for name in ("sub", "n", "scope")} == {
        "sub": "me",
        "n": 5,
        "scope": ["a", "b"],
    }
    assert before <= claims["iat"] <= time.time()
    assert claims["exp"] == claims["iat"] + 60 == token.expires
    assert token.principal == "me"
    assert dict(token.extensions) == {"traceId": "7"}


def test_a_token_is_sent_as_rfc_7628_has_it() -> None:
    line = 'unsecuredLoginStringClaim_sub="me" unsecuredLoginExtension_a="b"'
    mechanism = sasl_mechanism(bearer(line))
    sent = mechanism.auth_bytes()
    assert sent.startswith(b"n,,\x01auth=Bearer ey")
    assert sent.endswith(b".\x01a=b\x01\x01")
    mechanism.receive(b'{"status":"invalid_token"}')
    assert mechanism.auth_bytes() == b"\x01"
    assert not mechanism.is_done()


def test_a_token_in_a_file_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "a token"
    kafka = bearer(
        'extension_a="b"',
        sasl__oauthbearer__token__endpoint__url=path.as_uri(),
    )
    for name in ("first", "second"):
        path.write_text(f"{jwt(sub=name, exp=time.time() + 60)}\n")
        token = oauth.obtain(kafka)
        assert claims_of(token.value.reveal())["sub"] == token.principal == name
        assert dict(token.extensions) == {"a": "b"}
    path.write_text(jwt(sub="late", exp=time.time() - 5))
    with pytest.raises(AuthenticationError, match="is expired since 5 s"):
        oauth.obtain(kafka)
    for text in ("", "two words", "ü"):
        path.write_text(text)
        with pytest.raises(OptionsError, match=r"token\.endpoint\.url: the file"):
            oauth.obtain(kafka)
    path.unlink()
    with pytest.raises(OptionsError, match="No such file"):
        oauth.obtain(kafka)


class Endpoint:
    """A token endpoint that answers by a list, the last answer for ever."""

    def __init__(self, *answers: tuple[int, str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, str], str]] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                endpoint.asked.append((self.path, dict(self.headers), body))
                several = len(endpoint.answers) > 1
                status, text = endpoint.answers.pop(0) if several else endpoint.answers[0]
                self.send_response(status)
                if status in {302, 307}:
                    self.send_header("Location", text)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/token?tenant=1"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


def credentials(url: str, line: str = "", **more: str) -> KafkaConfig:
    """A configuration to fetch tokens with, without patience."""
    named = {
        "sasl__oauthbearer__token__endpoint__url": url,
        "sasl__oauthbearer__client__credentials__client__id": "the id",
        "sasl__oauthbearer__client__credentials__client__secret": SECRET,
        "sasl__login__retry__backoff__ms": "1",
        "sasl__login__retry__backoff__max__ms": "40",
    }
    return bearer(line, **{**named, **more})


def granted(**claims: Any) -> tuple[int, str]:
    token = jwt(**{"sub": "me", "exp": time.time() + 600, **claims})
    return 200, json.dumps({"access_token": token, "token_type": "Bearer", "expires_in": 600})


def test_client_credentials_are_asked_with_once() -> None:
    with Endpoint(granted()) as endpoint:
        kafka = credentials(endpoint.url, 'extension_a="b"', sasl__oauthbearer__scope="r w")
        first = oauth.obtain(kafka)
        again = oauth.obtain(pickle.loads(pickle.dumps(kafka)))
        assert oauth.obtain(replace(kafka, client_id="other")) is first
    assert first is again
    assert (first.principal, dict(first.extensions)) == ("me", {"a": "b"})
    ((path, headers, body),) = endpoint.asked
    assert path == "/token?tenant=1"
    assert body == "grant_type=client_credentials&scope=r+w"
    pair = base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode()
    assert pair == f"the id:{SECRET}"
    assert headers["Content-Type"] == "application/x-www-form-urlencoded"


def test_credentials_in_the_line_and_urlencoded() -> None:
    with Endpoint(granted()) as endpoint:
        kafka = bearer(
            'clientId="a:b" clientSecret="c d+" scope="s"',
            sasl__oauthbearer__token__endpoint__url=endpoint.url,
            sasl__oauthbearer__header__urlencode="true",
        )
        oauth.obtain(kafka)
    ((_, headers, body),) = endpoint.asked
    assert base64.b64decode(headers["Authorization"][6:]) == b"a%3Ab:c+d%2B"
    assert body == "grant_type=client_credentials&scope=s"


def test_a_token_is_fetched_again_before_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    with Endpoint(granted(exp=now + 100), granted(exp=now + 200)) as endpoint:
        kafka = credentials(endpoint.url)
        clock = [now]
        monkeypatch.setattr(oauth.time, "time", lambda: clock[0])
        first = oauth.obtain(kafka)
        clock[0] = now + 79
        assert oauth.obtain(kafka) is first
        clock[0] = now + 81
        assert oauth.obtain(kafka) is not first
    assert len(endpoint.asked) == 2


def test_what_may_pass_is_tried_again() -> None:
    with Endpoint((503, "busy"), (500, ""), granted()) as endpoint:
        assert oauth.obtain(credentials(endpoint.url)).principal == "me"
    assert len(endpoint.asked) == 3


def test_what_does_not_pass_in_time_is_an_error_to_retry() -> None:
    with (
        Endpoint((503, SECRET)) as endpoint,
        pytest.raises(OSError, match=r"/token: HTTP status 503") as caught,
    ):
        oauth.obtain(credentials(endpoint.url))
    assert not isinstance(caught.value, AuthenticationError)
    assert SECRET not in str(caught.value)
    assert len(endpoint.asked) > 2
    with pytest.raises(OSError, match="refused"):
        oauth.obtain(credentials(endpoint.url))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((401, json.dumps({"error": "invalid_client"})), "HTTP status 401 (invalid_client: the c"),
        ((401, "<html>"), "HTTP status 401 (the client's id or secret is wrong)"),
        ((400, json.dumps({"error": "invalid_scope"})), "(invalid_scope: kafka.sasl.oauthbearer.s"),
        ((400, json.dumps({"error": SECRET})), "HTTP status 400"),
        ((400, json.dumps([SECRET])), "HTTP status 400"),
        ((404, ""), "HTTP status 404"),
        ((200, SECRET), "its answer is no JSON"),
        ((200, "[]"), "its answer holds no access_token"),
        ((200, json.dumps({"access_token": 5})), "its answer holds no access_token"),
        ((200, json.dumps({"access_token": "a\nb"})), "its answer holds no access_token"),
        ((200, json.dumps({"access_token": "x" * (1 << 20)})), "is longer than 1 MiB"),
        ((200, json.dumps({"access_token": jwt(exp=5)})), "is expired already"),
    ],
)
def test_what_an_endpoint_refuses_is_not_asked_again(answer: tuple[int, str], says: str) -> None:
    with (
        Endpoint(answer) as endpoint,
        pytest.raises(AuthenticationError) as caught,
    ):
        oauth.obtain(credentials(endpoint.url))
    assert says in str(caught.value)
    assert "tenant" not in str(caught.value)
    assert SECRET not in f"{caught.value!r} {caught.value.__cause__!r}"
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize("status", [302, 307])
def test_credentials_do_not_follow_a_redirect(status: int) -> None:
    with (
        Endpoint(granted()) as other,
        Endpoint((status, other.url)) as endpoint,
        pytest.raises(AuthenticationError, match=f"HTTP status {status}"),
    ):
        oauth.obtain(credentials(endpoint.url))
    assert other.asked == []


def test_a_token_that_is_no_jwt_lives_as_long_as_the_answer_says() -> None:
    answer = json.dumps({"access_token": "opaque", "expires_in": 50})
    with Endpoint((200, answer)) as endpoint:
        token = oauth.obtain(credentials(endpoint.url))
    assert token.value.reveal() == "opaque"
    assert time.time() + 40 < token.expires <= time.time() + 50
    assert repr(token).startswith("Token(value=<hidden>, ")


def test_an_endpoint_is_believed_by_its_certificate(
    server_pair: Pair, authority: Pair, tmp_path: Path
) -> None:
    path = tmp_path / "ca.pem"
    path.write_text(authority.pem)
    _, text = granted()

    def answer(secured: ssl.SSLSocket) -> None:
        while not secured.recv(65536).endswith(b"client_credentials"):
            pass
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        secured.sendall(head.encode() + text.encode())

    trusted = f'ssl.truststore.location="{path}" ssl.truststore.type="PEM"'
    with listening(tls_server(server_pair, tmp_path, then=answer)) as port:
        url = f"https://localhost:{port}/token"
        assert oauth.obtain(credentials(url, trusted)).principal == "me"
        with pytest.raises(AuthenticationError, match="its certificate was not accepted"):
            oauth.obtain(credentials(url))


# -- librdkafka -----------------------------------------------------------------------------------


def accepted(kafka: KafkaConfig) -> dict[str, Any]:
    """The configuration, which librdkafka takes; nothing is contacted."""
    found = librdkafka_config(kafka)
    AdminClient({**found, "bootstrap.servers": "", "log_level": 0})
    return found


def test_a_plain_configuration() -> None:
    kafka = config(server="a:1,[::1]:2", client__id="c", client__rack="r")
    assert accepted(kafka) == {
        "bootstrap.servers": "a:1,[::1]:2",
        "security.protocol": "plaintext",
        "client.id": "c",
        "client.rack": "r",
        "socket.keepalive.enable": True,
    }


def test_times_and_sizes_are_handed_on_within_bounds() -> None:
    found = accepted(
        config(
            request__timeout__ms="5000",
            retry__backoff__ms="5000",
            reconnect__backoff__ms="20000",
            metadata__max__age__ms="0",
            connections__max__idle__ms="-1",
            send__buffer__bytes="-1",
            receive__buffer__bytes="2147483647",
            socket__connection__setup__timeout__ms="1",
            client__dns__lookup="USE_ALL_DNS_IPS",
        )
    )
    assert found["socket.timeout.ms"] == 5000
    assert (found["retry.backoff.ms"], found["retry.backoff.max.ms"]) == (5000, 5000)
    assert (found["reconnect.backoff.ms"], found["reconnect.backoff.max.ms"]) == (20000, 20000)
    assert found["metadata.max.age.ms"] == 1
    assert found["connections.max.idle.ms"] == 0
    assert found["socket.send.buffer.bytes"] == 0
    assert found["socket.receive.buffer.bytes"] == 100_000_000
    assert found["socket.connection.setup.timeout.ms"] == 1000
    assert found["client.dns.lookup"] == "use_all_dns_ips"


@pytest.mark.parametrize("kind", ["PKCS12", "JKS"])
def test_stores_are_handed_on_as_pem(
    kind: str, authority: Pair, client: Pair, middle: Pair, tmp_path: Path
) -> None:
    trust, keys = tmp_path / "t.jks", tmp_path / "keys"
    trust.write_bytes(jks_of([authority.der], SECRET))
    if kind == "JKS":
        keys.write_bytes(jks_of([authority.der], SECRET, [jks_key(client, [middle], SECRET)]))
    else:
        keys.write_bytes(pkcs12_of(client, [middle], SECRET))
    kafka = config(
        "SSL",
        ssl__truststore__location=str(trust),
        ssl__truststore__password=SECRET,
        ssl__keystore__location=str(keys),
        ssl__keystore__password=SECRET,
    )
    found = accepted(kafka)
    assert ders(found["ssl.ca.pem"]) == [authority.der]
    assert ders(found["ssl.certificate.pem"]) == [client.der, middle.der]
    assert found["ssl.key.pem"] == client.key_pem()
    assert found["ssl.endpoint.identification.algorithm"] == "https"
    unnamed = replace(
        kafka,
        properties=Properties(
            {**kafka.properties, "ssl.endpoint.identification.algorithm": ""},
        ),
    )
    assert accepted(unnamed)["ssl.endpoint.identification.algorithm"] == "none"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_logins_are_handed_on(mechanism: str) -> None:
    found = accepted(login(mechanism, "a=b"))
    names = ("sasl.mechanisms", "sasl.username", "sasl.password", "security.protocol")
    assert [found[name] for name in names] == [mechanism, "a=b", SECRET, "sasl_plaintext"]


def test_tokens_are_handed_on_when_they_are_asked_for() -> None:
    line = 'unsecuredLoginStringClaim_sub="me" unsecuredLoginExtension_a="b"'
    found = librdkafka_config(bearer(line))
    token, expires, principal, extensions = found["oauth_cb"]("")
    assert claims_of(token)["exp"] == expires > time.time()
    assert (principal, extensions) == ("me", {"a": "b"})
    assert found["sasl.mechanisms"] == "OAUTHBEARER"


def test_what_is_wrong_with_a_token_is_told_at_once() -> None:
    with (
        Endpoint((401, "")) as endpoint,
        pytest.raises(AuthenticationError, match="HTTP status 401"),
    ):
        librdkafka_config(credentials(endpoint.url))
    with pytest.raises(OSError, match="refused"):
        librdkafka_config(credentials(endpoint.url))
