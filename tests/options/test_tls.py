"""TLS as `ssl.*` says it, and secrets that nothing shows."""

import itertools
import pickle
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.errors import OptionsError
from kshare.options import parse_options, parse_sink_options
from kshare.options.kafka_table import PROPERTIES
from kshare.options.kafka_table import SECRET as SECRET_PROPERTIES
from tests.options.test_security import JAAS, OAUTH, PLAIN, URL
from tests.support.options import BASE, SECRET, SERVERS, options, problem, problems, warnings

# -- TLS ------------------------------------------------------------------------------------------


def tls(**more: str) -> dict[str, str]:
    """Options with TLS; dots of names are written as two underscores."""
    named = {f"kafka.ssl.{name.replace('__', '.')}": value for name, value in more.items()}
    return {"kafka.security.protocol": "SSL", **named}


@pytest.mark.parametrize(
    "given",
    [
        tls(),
        tls(truststore__location="t.jks"),
        tls(truststore__location="t.jks", truststore__password=SECRET, truststore__type="jks"),
        tls(truststore__location="t.p12", truststore__password=SECRET, truststore__type="PKCS12"),
        tls(truststore__location="t.pem", truststore__type="pem"),
        tls(truststore__certificates="x", truststore__type="PEM"),
        tls(keystore__location="k.p12", keystore__type="PKCS12", keystore__password=SECRET),
        tls(keystore__location="k.pem", keystore__type="PEM", key__password=SECRET),
        tls(keystore__key="k", keystore__certificate__chain="c", keystore__type="PEM"),
        tls(endpoint__identification__algorithm="HTTPS"),
        tls(enabled__protocols="TLSv1.3, TLSv1.2"),
    ],
)
def test_stores_that_can_be_used(given: dict[str, str]) -> None:
    kafka = options(given).kafka
    assert (kafka.uses_tls, kafka.uses_sasl) == (True, False)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            tls(keystore__type="DKS"),
            "keystore.type: is not built (given: 'DKS'); allowed: PEM, PKCS12, JKS",
        ),
        (tls(truststore__type="x"), "truststore.type: is not built (given: 'x'); allowed: PEM, "),
        (
            tls(keystore__location="k.p12", keystore__type="PKCS12"),
            "keystore.password: must be specified for a PKCS12 key store",
        ),
        (
            tls(keystore__location="k", keystore__type="PEM", keystore__password=SECRET),
            "keystore.password: cannot be given with PEM; set kafka.ssl.key.password",
        ),
        (
            tls(truststore__location="k", truststore__type="PEM", truststore__password=SECRET),
            "truststore.password: cannot be given with PEM; leave it out",
        ),
        (
            tls(keystore__key=SECRET, keystore__certificate__chain="c"),
            "keystore.key: needs kafka.ssl.keystore.type=PEM",
        ),
        (
            tls(keystore__key=SECRET, keystore__type="PEM"),
            "keystore.certificate.chain: must be specified with ssl.keystore.key",
        ),
        (
            tls(keystore__certificate__chain=SECRET, keystore__type="PEM"),
            "keystore.key: must be specified with ssl.keystore.certificate.chain",
        ),
        (
            tls(
                keystore__key="k",
                keystore__certificate__chain="c",
                keystore__type="PEM",
                keystore__location="l",
            ),
            "keystore.location: is given beside ssl.keystore.key: give one (given: 'l')",
        ),
        (
            tls(truststore__certificates=SECRET),
            "truststore.certificates: needs kafka.ssl.truststore.type=PEM",
        ),
        (
            tls(truststore__certificates="c", truststore__type="PEM", truststore__location="l"),
            "truststore.location: is given beside ssl.truststore.certificates: give one",
        ),
        (
            tls(enabled__protocols="TLSv1.1,TLSv1.2"),
            "enabled.protocols: is wrong (given: 'TLSv1.1,TLSv1.2'); allowed: TLSv1.2, TLSv1.3",
        ),
        (tls(enabled__protocols=""), "enabled.protocols: is wrong"),
        (
            tls(endpoint__identification__algorithm="LDAPS"),
            "endpoint.identification.algorithm: is not known (given: 'LDAPS'); allowed: https",
        ),
    ],
)
def test_stores_that_cannot_be_used_are_refused(given: dict[str, str], says: str) -> None:
    found = problem(given)
    assert found.startswith(f"kafka.ssl.{says}")
    assert SECRET not in found


def test_any_host_is_accepted_with_a_warning_only() -> None:
    (found,) = warnings(tls(endpoint__identification__algorithm=""))
    assert "any host with a certificate of the trusted authorities is accepted" in found


@pytest.mark.parametrize("version", ["TLSv1.2", " TLSv1.3,TLSv1.3 "])
def test_a_version_of_tls_that_counts_for_tasks_alone_gets_a_warning(version: str) -> None:
    (found,) = warnings(tls(enabled__protocols=version))
    assert found.startswith("option kafka.ssl.enabled.protocols counts for tasks that read; ")
    sink = {**SERVERS, **tls(enabled__protocols=version), "topic": "t"}
    assert parse_sink_options(sink, streaming=True).warnings == (found,)
    assert warnings(tls(enabled__protocols="TLSv1.3,TLSv1.2")) == ()


def test_tls_without_tls_gets_a_warning() -> None:
    given = {**tls(truststore__location="t"), "kafka.security.protocol": "PLAINTEXT"}
    assert warnings(given) == (
        "option kafka.ssl.truststore.location has no effect with kafka.security.protocol=PLAINTEXT",
    )


# -- secrets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(SECRET_PROPERTIES))
@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL", "PLAINTEXT", "nonsense"])
@pytest.mark.parametrize("streaming", [True, False])
def test_no_text_shows_a_password(name: str, protocol: str, streaming: bool) -> None:
    given = {**BASE, "kafka.security.protocol": protocol, f"kafka.{name}": SECRET}
    if protocol == "SASL_SSL":
        given.setdefault(JAAS, f'{OAUTH} required clientSecret="{SECRET}" clientId="i";')
        given |= {"kafka.sasl.mechanism": "OAUTHBEARER", URL: "https://a/b"}
    try:
        parsed = parse_options(given, streaming=streaming)
    except OptionsError as error:
        texts = [str(error), repr(error), *error.problems, *traceback.format_exception(error)]
        texts.append(repr(pickle.loads(pickle.dumps(error))))
    else:
        again = pickle.loads(pickle.dumps(parsed))
        assert again == parsed
        kafka = again.options.kafka
        texts = [repr(parsed), str(parsed), repr(again), repr(kafka), str(kafka.properties)]
        texts += [*parsed.warnings, repr(kafka.login), f"{kafka.sasl_password}"]
    assert [text for text in texts if SECRET in text] == []


@given(st.sampled_from(sorted(PROPERTIES)), st.sampled_from(["SSL", "SASL_SSL", "SASL_PLAINTEXT"]))
def test_whatever_holds_it_a_password_among_properties_is_not_repeated(
    name: str, protocol: str
) -> None:
    given = {**SERVERS, "subscribe": "t", "kafka.security.protocol": protocol}
    given |= {JAAS: f'{PLAIN} required username="u" password="{SECRET}";'}
    given |= {"kafka.sasl.mechanism": "PLAIN", "kafka.ssl.key.password": SECRET}
    given[f"kafka.{name}"] = given.get(f"kafka.{name}", "x")
    try:
        text = repr(parse_options(given, streaming=True))
    except OptionsError as error:
        text = str(error)
    assert SECRET not in text


def test_every_secret_of_the_options_is_known_as_one() -> None:
    words = ("password", "secret", "jaas", "keystore.key", "certificate")
    held = {name for name, word in itertools.product(PROPERTIES, words) if word in name}
    assert held == SECRET_PROPERTIES


@pytest.mark.parametrize("name", ["PKIX", " pkix ", "SunPKIX", "X.509", "X509", "SunX509"])
def test_javas_own_checks_of_certificates_are_what_is_done(name: str) -> None:
    given = {"kafka.security.protocol": "SSL", "kafka.ssl.trustmanager.algorithm": name}
    assert options(given)


def test_another_check_of_certificates_is_refused() -> None:
    given = {"kafka.security.protocol": "SSL", "kafka.ssl.trustmanager.algorithm": "Pinned"}
    (found,) = problems(given)
    assert found.startswith(
        "kafka.ssl.trustmanager.algorithm: is not built (given: 'Pinned'); allowed: PKIX, "
    )
    with pytest.raises(OptionsError) as caught:
        parse_sink_options({**SERVERS, **given, "topic": "t"}, streaming=False)
    assert caught.value.problems == (found,)
