"""Brokers, logins and certificates, as options; and that no text of any kind holds a secret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.errors import OptionsError
from kshare.options import parse_sink_options
from kshare.options.jaas import JaasEntry, parse_jaas
from tests.support.options import SECRET, SERVERS, options, problem, problems, warnings

PACKAGE = "org.apache.kafka.common.security"
PLAIN, SCRAM = f"{PACKAGE}.plain.PlainLoginModule", f"{PACKAGE}.scram.ScramLoginModule"
OAUTH = f"{PACKAGE}.oauthbearer.OAuthBearerLoginModule"
JAAS = "kafka.sasl.jaas.config"
URL = "kafka.sasl.oauthbearer.token.endpoint.url"
CLIENT = "kafka.sasl.oauthbearer.client.credentials.client"
HANDLER = "kafka.sasl.login.callback.handler.class"


def sasl(mechanism: str, jaas: str | None, **more: str) -> dict[str, str]:
    """Options to log in with."""
    found = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": mechanism, **more}
    return found if jaas is None else {**found, JAAS: jaas}


def quoted(text: str) -> str:
    """A text as JAAS wants it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r") + '"'


# -- brokers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("a:1", (("a", 1),)),
        (" a:1 , b-2.example.org:65535,,a:1", (("a", 1), ("b-2.example.org", 65535))),
        ("[::1]:9092,[2001:db8::2]:1", (("::1", 9092), ("2001:db8::2", 1))),
        ("SASL_SSL://a:1,PLAINTEXT://10.0.0.1:2", (("a", 1), ("10.0.0.1", 2))),
    ],
)
def test_servers_are_hosts_and_ports(text: str, servers: tuple[tuple[str, int], ...]) -> None:
    assert options({"kafka.bootstrap.servers": text}).kafka.bootstrap_servers == servers


@pytest.mark.parametrize(
    "entry",
    [
        "a",
        "a..b:1",
        f"{'x' * 64}:1",
        ".a:1",
        "a:",
        ":1",
        "a:0",
        "a:65536",
        "a:b",
        "::1:9092",
        "a b:1",
    ],
)
def test_what_is_no_server_is_refused(entry: str) -> None:
    assert problem({"kafka.bootstrap.servers": f"good:1,{entry}"}) == (
        f"kafka.bootstrap.servers: has an entry that is not host:port (given: {entry!r}); write "
        "for example broker-1:9092 or [::1]:9092"
    )


def test_no_server_is_a_fault() -> None:
    (found,) = problems({}, base={"subscribe": "t"})
    assert found == (
        "kafka.bootstrap.servers: must be specified; give host:port of one broker or more, "
        "separated by commas"
    )
    assert problem({"kafka.bootstrap.servers": " , "}).startswith(
        "kafka.bootstrap.servers: names no broker"
    )


def test_a_server_with_a_password_is_not_shown() -> None:
    assert SECRET not in problem({"kafka.bootstrap.servers": f"user:{SECRET}@a:1"})


# -- JAAS -----------------------------------------------------------------------------------------


def test_a_line_of_jaas() -> None:
    entry = parse_jaas(
        f"""{PLAIN} REQUIRED // who
        username='u' /* and
        with */ password="a\\"b\\\\c;=\\101\\t" debug=true ;"""
    )
    assert entry.module == PLAIN
    assert dict(entry.options) == {"username": "u", "password": 'a"b\\c;=A\t', "debug": "true"}
    assert repr(entry) == (
        f"JaasEntry(module={PLAIN!r}, options=Properties(username, password, debug))"
    )


@given(st.dictionaries(st.text("abz._-$", min_size=1, max_size=4).map("x{}".format), st.text()))
def test_jaas_is_what_was_written(given_: dict[str, str]) -> None:
    written = " ".join(f"{name}={quoted(value)}" for name, value in given_.items())
    assert dict(parse_jaas(f"a.B required {written};").options) == given_


@given(st.text())
def test_any_text_is_jaas_or_a_fault_without_it(text: str) -> None:
    with_secret = f'{text} password="{SECRET}" {SECRET}'
    try:
        parse_jaas(with_secret)
    except ValueError as error:
        assert SECRET not in str(error)  # noqa: PT017 - either is right


# As JaasConfig of Kafka with OpenJDK 17's StreamTokenizer reads them.
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no login module"),
        ("// a comment", "names no login module"),
        ("; required;", "does not begin with the name of a login module"),
        ("a.B", "lacks a control flag after what is not shown here"),
        ("a.B maybe;", "lacks a control flag after what is not shown here"),
        ("a.B required", "does not end with a semicolon"),
        ('a.B required username="u"', "does not end with a semicolon"),
        ("a.LoginModule", "lacks a control flag after a.LoginModule"),
        ("a.B required username;", "has no '=' after username"),
        ("a.B required password=two words;", "has no '=' after what is not shown here"),
        ("a.B required username=;", "has no value for username"),
        ("a.B required username=", "has no value for username"),
        ("a.B required password=123;", "has a number as value of password"),
        ("a.B required password=1abc;", "has a number as value of password"),
        ('a.B required password="a;', "has a quoted text that does not end on its line"),
        ('a.B required password="a\nb";', "has a quoted text that does not end on its line"),
        ('a.B required ="a";', "has something else where the name of an option belongs"),
        ('a.B required; c.D required x="y";', "has 2 login modules; exactly one is wanted"),
    ],
)
def test_what_java_does_not_read_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace(".", r"\.")):
        parse_jaas(text)


def test_comments_begin_with_a_slash_as_in_java() -> None:
    assert dict(parse_jaas("a.B required x=ab/c;\n;").options) == {"x": "ab"}


# -- SASL -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("package", [PACKAGE, f"kafkashaded.{PACKAGE}"])
def test_a_login_with_a_password(mechanism: str, package: str) -> None:
    kind = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    line = f'{package}.{kind} required username="u" password={quoted(SECRET)};'
    kafka = options(sasl(mechanism.lower(), line)).kafka
    assert (kafka.sasl_mechanism, kafka.security_protocol) == (mechanism, "SASL_SSL")
    assert kafka.uses_sasl
    assert kafka.uses_tls
    assert kafka.sasl_username == "u"
    assert kafka.sasl_password is not None
    assert kafka.sasl_password.reveal() == SECRET
    assert isinstance(kafka.login, JaasEntry)


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_a_login_names_its_mechanism(protocol: str) -> None:
    assert problem({"kafka.security.protocol": protocol}) == (
        "kafka.sasl.mechanism: must be specified, Java's default GSSAPI (Kerberos) is not built; "
        "allowed: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"
    )


@pytest.mark.parametrize(
    ("mechanism", "says"),
    [("GSSAPI", "is not built"), ("SCRAM", "is not known")],
)
def test_other_mechanisms_are_refused(mechanism: str, says: str) -> None:
    found = problem(sasl(mechanism, "not looked at"))
    assert found.startswith(f"kafka.sasl.mechanism: {says} (given: {mechanism!r}); allowed: PLAIN")


def test_iam_of_amazon_is_two_lines_away() -> None:
    given = {"kafka.sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.X"}
    line = "software.amazon.msk.auth.iam.IAMLoginModule required;"
    found = problems({**sasl("AWS_MSK_IAM", line), **given})[-1]
    assert found.startswith("kafka.sasl.mechanism: is not built (given: 'AWS_MSK_IAM'); ")
    assert found.splitlines()[1:] == [
        "      kafka.sasl.mechanism=OAUTHBEARER",
        "      oauthTokenProvider=package.module:function",
    ]


@pytest.mark.parametrize(
    ("mechanism", "line", "says"),
    [
        ("PLAIN", None, f"must be specified; write {PLAIN} required username="),
        ("PLAIN", f'{PLAIN} required username="u";', "lacks password; write "),
        ("PLAIN", f"{PLAIN} required;", "lacks username and password; write "),
        ("PLAIN", f'{PLAIN} required username="u" password="";', "lacks password"),
        ("PLAIN", f'{PLAIN} required username="u" password="\\0";', "has a NUL character"),
        (
            "PLAIN",
            f'{PLAIN} required username=" u" password="p";',
            "has a username that begins with a blank, which librdkafka leaves out",
        ),
        (
            "SCRAM-SHA-256",
            f'{SCRAM} required username="u" password="\tp";',
            "has a password that begins with a blank, which librdkafka leaves out",
        ),
        ("PLAIN", f"{SCRAM} required;", "names a login module that does not fit PLAIN; write "),
        ("SCRAM-SHA-256", f"{PLAIN} required;", "names a login module that does not fit SCRAM-"),
        ("OAUTHBEARER", f"{SCRAM} required;", "names a login module that does not fit OAUTHB"),
        ("OAUTHBEARER", None, f"must be specified; write {OAUTH} required;"),
        (
            "SCRAM-SHA-512",
            f'{SCRAM} required username="u" password="p" tokenauth="true";',
            "has tokenauth=true: delegation tokens are not built",
        ),
        ("PLAIN", "{", "does not begin with the name of a login module; write "),
    ],
)
def test_a_login_that_cannot_work_is_refused(mechanism: str, line: str | None, says: str) -> None:
    found = problems(sasl(mechanism, line))
    assert found[0].startswith(f"{JAAS}: {says}")


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_login_without_sasl_gets_a_warning(protocol: str) -> None:
    given = sasl("PLAIN", f'{PLAIN} required username="u" password="p";')
    found = warnings({**given, HANDLER: "a.B", "kafka.security.protocol": protocol})
    assert sorted(text.split()[1] for text in found) == [JAAS, HANDLER, "kafka.sasl.mechanism"]
    assert all(f"no effect with kafka.security.protocol={protocol}" in text for text in found)


# -- OAUTHBEARER ----------------------------------------------------------------------------------


def oauth(line: str | None = f"{OAUTH} required;", **more: str) -> dict[str, str]:
    return sasl("OAUTHBEARER", line, **more)


def test_client_credentials_as_properties_or_in_the_line() -> None:
    url = {URL: "https://login.example.org:8443/token"}
    assert options(oauth(**url, **{f"{CLIENT}.id": "i", f"{CLIENT}.secret": SECRET}))
    assert options(oauth(None, **url, **{f"{CLIENT}.id": "i", f"{CLIENT}.secret": SECRET}))
    line = f'{OAUTH} required clientId="i" clientSecret="{SECRET}" extension_logicalCluster="l";'
    assert options(oauth(line, **url))
    assert problems(oauth(**url)) == (
        f"{CLIENT}.id: must be specified with {URL}; here, or as clientId in {JAAS}",
        f"{CLIENT}.secret: must be specified with {URL}; here, or as clientSecret in {JAAS}",
    )


def test_a_token_may_be_a_file_or_unsecured() -> None:
    assert options(oauth(**{URL: "file:///run/token"}))
    line = f'{OAUTH} required unsecuredLoginStringClaim_sub="me" unsecuredLoginExtension_a="b";'
    assert options(oauth(line))
    renamed = (
        f'{OAUTH} required unsecuredLoginPrincipalClaimName="p" unsecuredLoginStringClaim_p="me";'
    )
    assert options(oauth(renamed))


@pytest.mark.parametrize(
    "handler",
    [
        f"{PACKAGE}.oauthbearer.OAuthBearerLoginCallbackHandler",
        f"{PACKAGE}.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
    ],
)
def test_kafkas_own_login_handlers_are_built(handler: str) -> None:
    given = {URL: "file:///run/token", HANDLER: handler}
    assert options(oauth(**given))
    given[HANDLER] = "com.example.Handler"
    assert problem(oauth(**given)).startswith(
        "kafka.sasl.login.callback.handler.class: names a Java class, which kshare cannot load"
    )


@pytest.mark.parametrize(("mechanism", "module"), [("PLAIN", PLAIN), ("SCRAM-SHA-512", SCRAM)])
def test_a_login_by_password_refuses_a_handler_that_java_would_ask(
    mechanism: str, module: str
) -> None:
    given = sasl(mechanism, f"{module} required username=u password=p;")
    default = f"{PACKAGE}.authenticator.AbstractLogin$DefaultLoginCallbackHandler"
    assert warnings({**given, HANDLER: default}) == ()
    tokens = f"makes tokens, which {mechanism} does not take"
    for handler, wrong in (
        ("com.example.VaultHandler", "names a Java class, which kshare cannot load"),
        (f"{PACKAGE}.oauthbearer.OAuthBearerLoginCallbackHandler", tokens),
        ("package.module:function", tokens),
    ):
        assert problem({**given, HANDLER: handler}).startswith(f"{HANDLER}: {wrong}")
        sink = {**SERVERS, **given, HANDLER: handler, "topic": "t"}
        with pytest.raises(OptionsError, match=wrong):
            parse_sink_options(sink, streaming=True)
    tokens_of = {URL: "https://a/token", f"{CLIENT}.id": "i", f"{CLIENT}.secret": SECRET}
    assert sorted(warnings({**given, **tokens_of})) == [
        f"option {name} has no effect with kafka.sasl.mechanism={mechanism}"
        for name in sorted(tokens_of)
    ]


@pytest.mark.parametrize("name", ["module:function", "package.module:Class.method"])
def test_a_token_provider_needs_nothing_else(name: str) -> None:
    for line in (None, f"{OAUTH} required;"):
        for streaming in (True, False):
            given = {**oauth(line), "oauthTokenProvider": f" {name} "}
            kafka = options(given, streaming=streaming).kafka
            assert (kafka.sasl_mechanism, kafka.oauth_token_provider) == ("OAUTHBEARER", name)
    parsed = parse_sink_options({**given, **SERVERS, "topic": "t"}, streaming=True)
    assert (parsed.options.kafka.oauth_token_provider, parsed.warnings) == (name, ())


@pytest.mark.parametrize("name", ["module:function", "package.module.function"])
def test_a_token_provider_may_be_named_as_javas_handler(name: str) -> None:
    assert options(oauth(None, **{HANDLER: name})).kafka.oauth_token_provider == name
    twice = {**oauth(None, **{HANDLER: name}), "oauthTokenProvider": "module:other"}
    assert problem(twice) == (
        f"{HANDLER}: is given beside oauthTokenProvider: give one (given: {name!r})"
    )


@pytest.mark.parametrize("name", ["function", "com.example.Handler", "a:b:c", "a b.c", ".f", "f."])
def test_what_cannot_be_a_function_of_python_is_a_class_of_java(name: str) -> None:
    assert problem(oauth(**{URL: "file:///run/token", HANDLER: name})).startswith(
        f"{HANDLER}: names a Java class, which kshare cannot load (given: {name!r}); leave it out"
    )


@pytest.mark.parametrize("name", ["", "module", "a.b.c", "a:b:c", ":f", "m:", "1:2", "a b:c"])
def test_what_is_no_path_of_a_function_is_refused(name: str) -> None:
    found = problems({**oauth(None), "oauthTokenProvider": name})
    assert found[0] == (
        f"oauthTokenProvider: is not the path of a Python function (given: {name!r}); "
        "write package.module:function"
    )


def test_tokens_come_from_one_place() -> None:
    given = {"oauthTokenProvider": "module:function"}
    assert problem({**oauth(**{URL: f"https://x/{SECRET}"}), **given}) == (
        f"{URL}: is given beside oauthTokenProvider: give one"
    )
    line = f'{OAUTH} required unsecuredLoginStringClaim_sub="{SECRET}" extension_a="{SECRET}";'
    (found,) = warnings({**oauth(line), **given})
    assert found == (
        f"option {JAAS} has options, which have no effect with oauthTokenProvider: "
        "unsecuredLoginStringClaim_sub, extension_a"
    )


def test_a_token_provider_without_oauth_gets_a_warning() -> None:
    line = f'{PLAIN} required username="u" password="p";'
    given = {**sasl("PLAIN", line), "oauthTokenProvider": "module:function"}
    assert warnings(given) == (
        "option oauthTokenProvider has no effect with kafka.sasl.mechanism=PLAIN",
    )
    (found,) = warnings({"oauthTokenProvider": "module:function"})
    assert found == (
        "option oauthTokenProvider has no effect with kafka.security.protocol=PLAINTEXT; set "
        "SASL_SSL or SASL_PLAINTEXT to log in"
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", f"{URL}: must be specified; give the https URL of the token endpoint"),
        ('unsecuredLoginStringClaim_x="y"', f"{JAAS}: lacks unsecuredLoginStringClaim_sub"),
        (
            'unsecuredLoginStringClaim_sub="y" unsecuredLoginNumberClaim_n="z"',
            f"{JAAS}: has a value of unsecuredLoginNumberClaim_n that is no number",
        ),
        (
            'unsecuredLoginStringClaim_sub="y" unsecuredLoginLifetimeSeconds="z"',
            f"{JAAS}: has a value of unsecuredLoginLifetimeSeconds that is no number",
        ),
        (
            'unsecuredLoginStringClaim_sub="y" unsecuredLoginExtension_auth="z"',
            f"{JAAS}: has a SASL extension whose name is not of letters",
        ),
        (
            'unsecuredLoginStringClaim_sub="y" unsecuredLoginExtension_a="\\1"',
            f"{JAAS}: has a SASL extension that cannot be sent: a",
        ),
    ],
)
def test_a_token_that_cannot_be_made_is_refused(line: str, says: str) -> None:
    assert problem(oauth(f"{OAUTH} required {line};")).startswith(says)


@pytest.mark.parametrize(
    "url",
    [
        *("", "login.example.org/token", "ftp://a/b", "https:///token", "https://a:b/", "file:x"),
        f"https://user:{SECRET}@login.example.org/token",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_and_not_shown(url: str) -> None:
    found = problem(oauth(**{URL: url}))
    assert found.startswith(f"{URL}: is no URL that can be used; wanted https://host/path")
    assert SECRET not in found


def test_a_secret_over_http_gets_a_warning() -> None:
    given = {URL: "http://login/token", f"{CLIENT}.id": "i", f"{CLIENT}.secret": SECRET}
    assert warnings(oauth(**given)) == (
        f"option {URL} sends the client's secret unencrypted; https is safe",
    )
