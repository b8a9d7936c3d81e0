"""Trust and key stores: PEM, PKCS#12 and JKS, against stores that keytool made."""

import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization as s

from kshare.options.frozen import Properties
from kshare.security.key_store import key_store
from kshare.security.store_files import has_key
from kshare.security.trust_store import trust_store
from tests.support.certificates import Pair, jks_of, make, pkcs12_of
from tests.support.options import SECRET
from tests.support.security import ders, properties, refused

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


# -- trust stores ---------------------------------------------------------------------------------


def test_without_a_store_the_system_is_trusted() -> None:
    assert trust_store(Properties()) is None
    assert not has_key(Properties())


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
        (
            b"-----BEGIN CERTIFICATE-----\n\xe9\n-----END CERTIFICATE-----",
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
    own = s.NoEncryption()
    der = s.Encoding.DER, s.PrivateFormat.PKCS8, own
    assert found.key.private_bytes(*der) == client.key.private_bytes(*der)
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
    unreadable = refused(lambda: key_store(inline(broken, client.pem)))
    assert unreadable == "kafka.ssl.keystore.key: holds a private key that cannot be read"
    damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"
    assert "certificate that cannot be read" in refused(lambda: key_store(inline(key, damaged)))
    path = tmp_path / "trust.p12"
    path.write_bytes(pkcs12_of(None, [client], SECRET))
    without = properties(keystore__location=str(path), keystore__password=SECRET)
    assert "holds no private key" in refused(lambda: key_store(without))
