"""JKS stores: what was written is read, whatever else is an error that names the option."""

import base64
import hashlib
import ssl
import struct
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa, x25519
from hypothesis import example, given
from hypothesis import strategies as st

from kshare.errors import OptionsError
from kshare.options.frozen import Properties
from kshare.security import jks
from kshare.security.key_store import KeyStore, key_store
from kshare.security.trust_store import trust_store
from tests.support.certificates import (
    Pair,
    der_value,
    encrypted_key_info,
    jks_key,
    jks_of,
    make,
    protected_of,
    sealed_jks,
)
from tests.support.options import SECRET
from tests.support.security import refused

# Made by keytool of OpenJDK 17: the key "client" with another password than the store's, its
# certificate of the authority "ca", and the authority as a trusted entry behind it.
KEYTOOL_PASSWORDS = {"ssl.keystore.password": "changeit", "ssl.key.password": "keysecret"}
KEYTOOL_FINGERPRINTS = [  # as keytool -list has them, the first 8 bytes
    "D3:15:86:6C:4C:4A:D1:EB",
    "A5:9E:E1:95:4D:38:88:D1",
]
KEYTOOL_STORE = base64.b64decode(
    "/u3+7QAAAAIAAAACAAAAAQAGY2xpZW50AAABof739QsAAAB/MH0wDgYKKwYBBAEqAhEBAQUABGsGbqVxuGJE2YcAaSSv"
    "VRi1tsXHEKoe+pqSoK8j3TnqSOxYwmUR0CehTiyUrpnr5Q85fTr2Ct8pNMmx0M992NpAumKtGK0qf1lAJAsGAAnfLWbE"
    "IRkY6yHphdEz6KKqkWRPRUrC5bo0bPw10gAAAAIABVguNTA5AAABWzCCAVcwgf+gAwIBAgIJAI0h8iodedWuMAoGCCqG"
    "SM49BAMCMA0xCzAJBgNVBAMTAmNhMCAXDTI2MTEyMTE2MzcwM1oYDzIxMjYxMDI4MTYzNzAzWjARMQ8wDQYDVQQDEwZj"
    "bGllbnQwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAATEr8hqg1AbT0QwvNa5/h4xm8UIXzKp9tDMi6OxKYWs+shzapYZ"
    "jFLXwsjLeBQ8BY4J0uKzbKyyhG9OFh4aPR1Ho0IwQDAdBgNVHQ4EFgQU/kxM6yZ5Gngom7ggMlu9e/cUS+AwHwYDVR0j"
    "BBgwFoAUT9oCaIDNzYvwNDulNXgME0v4jV8wCgYIKoZIzj0EAwIDRwAwRAIgKKg+imo6x8YVSwf9u++WSDfSr34H4IBu"
    "yqyHiyXC8eMCIF2RNrLtBJgUBqSHLP/GGmA1qpWXHy+J4ok5LrTVn7OZAAVYLjUwOQAAAUgwggFEMIHqoAMCAQICCGtS"
    "95YkWEnBMAoGCCqGSM49BAMCMA0xCzAJBgNVBAMTAmNhMCAXDTI2MTEyMTE2MzcwMVoYDzIxMjYxMDI4MTYzNzAxWjAN"
    "MQswCQYDVQQDEwJjYTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABMKAAY6UAq43HHkomGZuZ8E3/b9FFgEu1p/xt8HF"
    "eKHWBDReKY/jdhsec5sGfpQJAtOY7UtnqkWCJeyN1u5Ky82jMjAwMB0GA1UdDgQWBBRP2gJogM3Ni/A0O6U1eAwTS/iN"
    "XzAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0kAMEYCIQD8A0wIPf5jxXytpjr0XAXm4H/ZVSPga5EKqCu6Ruv0"
    "KAIhAJoecucs+E8jJTV32K9ljQAaJWWChEBmUoGye1cEAX1jAAAAAgACY2EAAAGh/vfyUwAFWC41MDkAAAFIMIIBRDCB"
    "6qADAgECAghrUveWJFhJwTAKBggqhkjOPQQDAjANMQswCQYDVQQDEwJjYTAgFw0yNjExMjExNjM3MDFaGA8yMTI2MTAy"
    "ODE2MzcwMVowDTELMAkGA1UEAxMCY2EwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAATCgAGOlAKuNxx5KJhmbmfBN/2/"
    "RRYBLtaf8bfBxXih1gQ0XimP43YbHnObBn6UCQLTmO1LZ6pFgiXsjdbuSsvNozIwMDAdBgNVHQ4EFgQUT9oCaIDNzYvw"
    "NDulNXgME0v4jV8wDwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNJADBGAiEA/ANMCD3+Y8V8raY69FwF5uB/2VUj"
    "4GuRCqgrukbr9CgCIQCaHnLnLPhPIyU1d9ivZY0AGiVlgoRAZlKBsntXBAF9Y0hEBEwa9wtoxIZaUH9pdZ69dTd1"
)
# With halves of surrogate pairs, as Java's texts may have them.
TEXTS = st.text(max_size=8) | st.text("a\u00e9\ud83d\ude00", max_size=3)
DERS = st.lists(st.binary(max_size=40), max_size=3)


@pytest.fixture(scope="module")
def client(authority: Pair) -> Pair:
    return make("client", authority)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., KeyStore | None]:
    """Reads a key store from its bytes, with these properties besides its place."""
    path = tmp_path_factory.mktemp("stores") / "keys.jks"

    def read(content: bytes, passwords: Mapping[str, str]) -> KeyStore | None:
        path.write_bytes(content)
        return key_store(Properties({"ssl.keystore.location": str(path), **passwords}))

    return read


Opened = Callable[..., KeyStore | None]


def ders(store: KeyStore | None) -> list[bytes]:
    assert store is not None
    found = x509.load_pem_x509_certificates(store.certificates.encode())
    return [certificate.public_bytes(s.Encoding.DER) for certificate in found]


# -- the format -----------------------------------------------------------------------------------


@given(DERS, st.lists(st.tuples(st.binary(max_size=40), DERS), max_size=3), TEXTS, st.booleans())
def test_a_store_holds_what_was_put_into_it(
    trusted: list[bytes], keys: list[tuple[bytes, list[bytes]]], password: str, old: bool
) -> None:
    content = jks_of(trusted, password, keys, 1 if old else 2)
    expected = [
        jks.Entry(f"key-{number}", tuple(chain), protected)
        for number, (protected, chain) in enumerate(keys)
    ] + [jks.Entry(f"ca-{number}", (der,), None) for number, der in enumerate(trusted)]
    assert jks.read_jks(content, password) == jks.read_jks(content, None) == expected
    assert jks.read_jks(content + b"behind", password) == expected  # as Java reads it
    for wrong in {"", password + "x"} - {password}:
        with pytest.raises(jks.WrongPasswordError):
            jks.read_jks(content, wrong)


@given(st.binary(max_size=200), TEXTS, st.binary(min_size=20, max_size=20))
@example(bytes(70), "p", bytes(20))  # 128 bytes, the first length that takes a byte of its own
def test_a_key_comes_out_as_it_went_in(key: bytes, password: str, salt: bytes) -> None:
    protected = protected_of(key, password, salt)
    assert jks.private_key(protected, password) == key
    with pytest.raises(jks.WrongPasswordError):
        jks.private_key(protected, password + "x")


@given(st.binary(max_size=120))
def test_no_bytes_are_more_than_a_damaged_store(noise: bytes) -> None:
    whole = jks_of([b"abc"], "p", [(b"key", [b"x", b"y"])])
    for content in (noise, jks.JKS_MAGIC + noise, whole[:40] + noise):
        with pytest.raises((jks.DamagedStoreError, jks.WrongPasswordError)):
            jks.read_jks(content, "p")
    with pytest.raises(jks.DamagedStoreError):
        jks.private_key(noise, "p")


def test_a_store_that_ends_early_is_damaged() -> None:
    for size in range(len(KEYTOOL_STORE)):
        with pytest.raises(jks.DamagedStoreError):
            jks.read_jks(KEYTOOL_STORE[:size], None)


@pytest.mark.parametrize(
    "body",
    [
        struct.pack(">II", 0, 0),  # version
        struct.pack(">II", 3, 0),
        struct.pack(">III", 2, 1, 3) + bytes(60),  # tag
        struct.pack(">II", 2, 0xFFFFFFFF),  # how many
    ],
)
def test_what_no_store_has(body: bytes) -> None:
    with pytest.raises(jks.DamagedStoreError):
        jks.read_jks(sealed_jks(jks.JKS_MAGIC + body, "p"), "p")


def test_what_begins_otherwise_is_no_store() -> None:
    with pytest.raises(jks.DamagedStoreError):
        jks.read_jks(sealed_jks(b"\xce" * 4 + struct.pack(">II", 2, 0), "p"), "p")


DATA = bytes(40)
RIGHT, LONG = encrypted_key_info(DATA), encrypted_key_info(bytes(60))


@pytest.mark.parametrize(
    "protected",
    [
        b"",
        RIGHT + b"\x00",
        b"\x31" + RIGHT[1:],  # no SEQUENCE
        b"\x30\x80" + RIGHT[2:] + b"\x00\x00",  # no length: not DER
        b"\x30\x80" + encrypted_key_info(bytes(110))[3:],  # nor is it one of 128 bytes
        b"\x30\x81" + RIGHT[1:],  # a length longer than it must be
        b"\x30\x82\x00" + encrypted_key_info(bytes(150))[2:],
        b"\x30\xff" + b"\xff" * 127 + RIGHT,
        der_value(0x30, RIGHT[2:] + b"\x05\x00"),  # a third value
        der_value(0x30, RIGHT[2:18]),  # no data
        der_value(0x30, der_value(0x30, b"\x05\x00") + der_value(0x04, DATA)),  # no algorithm
        encrypted_key_info(DATA[:39]),  # no room for salt and digest
        *[LONG[:size] for size in range(1, len(LONG))],
    ],
)
def test_what_no_protected_key_has(protected: bytes) -> None:
    with pytest.raises(jks.DamagedStoreError):
        jks.private_key(protected, "p")


def test_an_alias_may_be_any_bytes() -> None:
    body = KEYTOOL_STORE[:-20].replace(b"client", b"cl\xff\xc0nt", 1)
    first, _ = jks.read_jks(sealed_jks(body, "p"), "p")
    assert first.alias == "cl\ufffd\ufffdnt"


def test_nothing_of_a_store_is_shown() -> None:
    assert repr(jks.read_jks(KEYTOOL_STORE, None)) == "[Entry(<hidden>), Entry(<hidden>)]"


def test_trust_is_in_the_trusted_and_in_the_first_of_each_chain(
    client: Pair, authority: Pair, tmp_path: Path
) -> None:
    path = tmp_path / "trust.jks"
    path.write_bytes(jks_of([authority.der], "p", [(b"", [client.der, b"other"]), (b"", [])]))
    found = trust_store(Properties({"ssl.truststore.location": str(path)}))
    assert found == client.pem + authority.pem


# -- key stores -----------------------------------------------------------------------------------


def test_a_key_store_of_keytool_is_read(opened: Opened) -> None:
    found = opened(KEYTOOL_STORE, KEYTOOL_PASSWORDS)
    assert found is not None
    prints = [hashlib.sha256(der).digest()[:8].hex(":").upper() for der in ders(found)]
    assert prints == KEYTOOL_FINGERPRINTS
    own = x509.load_der_x509_certificate(ders(found)[0])
    assert found.key.public_key() == own.public_key()
    assert repr(found) == "KeyStore(<hidden>)"


@pytest.mark.parametrize("kind", ["rsa", "ed25519"])
def test_keys_of_other_kinds(kind: str, authority: Pair, opened: Opened) -> None:
    key = (
        rsa.generate_private_key(65537, 2048)
        if kind == "rsa"
        else ed25519.Ed25519PrivateKey.generate()
    )
    issued = make("other", authority, key=key)
    found = opened(
        jks_of([], SECRET, [jks_key(issued, [authority], SECRET)]),
        {"ssl.keystore.password": SECRET},
    )
    assert ders(found) == [issued.der, authority.der]
    assert found is not None
    assert found.key_pem() == issued.key_pem()


def test_the_order_of_a_chain_is_the_entrys(client: Pair, authority: Pair, opened: Opened) -> None:
    chain = [authority, make("stranger"), authority]
    content = jks_of([authority.der], "p", [jks_key(client, chain, "p")])
    found = opened(content, {"ssl.keystore.password": "p"})
    assert ders(found) == [client.der, *(other.der for other in chain)]


@pytest.mark.parametrize(
    ("passwords", "says"),
    [
        ({}, "keystore.password: must be specified, the store cannot be read without it"),
        (
            {"ssl.keystore.password": SECRET, "ssl.key.password": "keysecret"},
            "keystore.password: does not open the store, or the store is damaged",
        ),
        (
            {"ssl.keystore.password": "changeit", "ssl.key.password": SECRET},
            "key.password: does not open the key in ssl.keystore.location",
        ),
        (
            {"ssl.keystore.password": "changeit"},
            "keystore.password: does not open the key in the store; set kafka.ssl.key.password",
        ),
    ],
)
def test_a_password_that_is_wrong(passwords: dict[str, str], says: str, opened: Opened) -> None:
    assert refused(lambda: opened(KEYTOOL_STORE, passwords)) == f"kafka.ssl.{says}"


def test_a_key_store_that_cannot_be_used(client: Pair, authority: Pair, opened: Opened) -> None:
    def told(*keys: tuple[bytes, list[bytes]], trusted: tuple[bytes, ...] = ()) -> str:
        content = jks_of(trusted, SECRET, keys)
        return refused(lambda: opened(content, {"ssl.keystore.password": SECRET}))

    where = "kafka.ssl.keystore.location:"
    key, chain = jks_key(client, [], SECRET)
    none = f"{where} holds no private key with its certificate"
    assert told(trusted=(authority.der,)) == none
    assert told((key, [])) == none
    assert told((b"", chain)) == f"{where} holds a private key that cannot be read"
    no_key = f"{where} holds a private key that cannot be read"
    assert told((protected_of(SECRET.encode(), SECRET), chain)) == no_key
    assert told((key, [b"no certificate"])) == f"{where} holds a certificate that cannot be read"
    assert told((key, [authority.der])) == (
        f"{where} begins with a certificate that is not the private key's"
    )
    agreed = x25519.X25519PrivateKey.generate()  # signs nothing
    plain = agreed.private_bytes(s.Encoding.DER, s.PrivateFormat.PKCS8, s.NoEncryption())
    assert "is not the private key's" in told((protected_of(plain, SECRET), chain))
    other = told((encrypted_key_info(DATA, "2b060104012a02130101"), chain))  # JCEKS's
    assert other.startswith(
        f"{where} holds a private key that is protected in another way than Java's own; with the "
        "Java that made it, convert it: keytool -importkeystore -srckeystore "
    )
    assert other.endswith("keys.jks.p12")


def test_of_several_keys_none_is_guessed(client: Pair, authority: Pair, opened: Opened) -> None:
    keys = [jks_key(client, [], SECRET), jks_key(authority, [], SECRET)]
    content = jks_of([], SECRET, keys)
    found = refused(lambda: opened(content, {"ssl.keystore.password": SECRET}))
    assert found.startswith(
        "kafka.ssl.keystore.location: holds 2 private keys (aliases: 'key-0', 'key-1'); exactly "
        "one is wanted; make a store of one: keytool -importkeystore -srckeystore "
    )
    assert "keys.jks -srcalias ALIAS -destkeystore " in found
    assert found.endswith("keys.jks.p12")
    without_chain = jks_of([], SECRET, [keys[0], (keys[1][0], [])])  # Java too leaves it out
    assert ders(opened(without_chain, {"ssl.keystore.password": SECRET})) == [client.der]


def test_jceks_is_refused_with_the_line_that_converts_it(opened: Opened) -> None:
    found = refused(lambda: opened(b"\xce\xce\xce\xce", {"ssl.keystore.password": SECRET}))
    assert found.startswith(
        "kafka.ssl.keystore.location: is a JCEKS key store, which kshare does not read; convert "
        "it: keytool -importkeystore -srckeystore "
    )
    assert ".p12 -deststoretype PKCS12, and set kafka.ssl.keystore.location to " in found
    assert found.endswith("keys.jks.p12")


def test_pem_that_is_named_so_is_not_taken_for_jks(opened: Opened) -> None:
    given_ = {"ssl.keystore.type": "PEM"}
    assert "in PEM format" in refused(lambda: opened(KEYTOOL_STORE, given_))


@given(
    st.lists(st.tuples(st.integers(0, len(KEYTOOL_STORE) - 21), st.integers(1, 255)), max_size=3),
    st.integers(0, len(KEYTOOL_STORE)),
    st.booleans(),
)
def test_no_damage_is_more_than_an_error_of_the_option(
    opened: Opened, flips: list[tuple[int, int]], size: int, sealed: bool
) -> None:
    """Also where the digest fits: what is behind it is read with the same care."""
    body = bytearray(KEYTOOL_STORE[:-20])
    for at, mask in flips:
        body[at] ^= mask
    content = sealed_jks(bytes(body), "changeit") if sealed else bytes(body[:size])
    if not sealed and size > len(body):
        content += KEYTOOL_STORE[len(body) : size]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of cryptography, of what a certificate should not have
        try:
            found = opened(content, KEYTOOL_PASSWORDS)
        except OptionsError as error:
            (told,) = error.problems
            assert told.startswith("kafka.ssl.key")
            assert "keysecret" not in told
            assert "changeit" not in told
            return
        assert found is not None
        assert x509.load_pem_x509_certificates(found.certificates.encode())


def test_openssl_takes_what_comes_out(opened: Opened, tmp_path: Path) -> None:
    found = opened(KEYTOOL_STORE, KEYTOOL_PASSWORDS)
    assert found is not None
    path = tmp_path / "client.pem"
    path.write_text(found.certificates + found.key_pem())
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(path)  # refuses a key of another's
