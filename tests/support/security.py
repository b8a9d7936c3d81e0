"""What the tests of security share: configurations, tokens, and servers in this process."""

import base64
import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

from kshare.errors import OptionsError
from kshare.options import KafkaConfig, parse_options
from kshare.options.frozen import Properties
from tests.support.certificates import Pair
from tests.support.options import SECRET


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


PACKAGE = "org.apache.kafka.common.security"


def login(mechanism: str, user: str = "u", password: str = SECRET, **more: str) -> KafkaConfig:
    """A configuration to log in with."""
    kind = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    escaped = password.replace("\\", "\\\\").replace('"', '\\"')
    line = f'{PACKAGE}.{kind} required username="{user}" password="{escaped}";'
    return config("SASL_PLAINTEXT", sasl__mechanism=mechanism, sasl__jaas__config=line, **more)


OAUTH = f"{PACKAGE}.oauthbearer.OAuthBearerLoginModule required"


def bearer(line: str = "", **more: str) -> KafkaConfig:
    """A configuration with OAUTHBEARER."""
    return config(
        "SASL_PLAINTEXT",
        sasl__mechanism="OAUTHBEARER",
        sasl__jaas__config=f"{OAUTH} {line};",
        **more,
    )


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


# -- tokens ---------------------------------------------------------------------------------------


def jwt(**claims: Any) -> str:
    """A token without a signature."""
    parts = [json.dumps({"alg": "none"}), json.dumps(claims)]
    encoded = [base64.urlsafe_b64encode(part.encode()).rstrip(b"=").decode() for part in parts]
    return f"{encoded[0]}.{encoded[1]}.x"


def claims_of(token: str) -> Any:
    payload = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


def granted(**claims: Any) -> tuple[int, str]:
    token = jwt(**{"sub": "me", "exp": time.time() + 600, **claims})
    return 200, json.dumps({"access_token": token, "token_type": "Bearer", "expires_in": 600})


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


# -- servers --------------------------------------------------------------------------------------


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
    pair: Pair,
    tmp_path: Path,
    *,
    clients: Pair | None = None,
    then: Any = None,
    through: Sequence[Pair] = (),
) -> Callable[[socket.socket], None]:
    """What serves TLS, shows those between it and a root, and then says hello or something else."""
    path = tmp_path / "server.pem"
    path.write_text("".join(each.pem for each in (pair, *through)) + pair.key_pem())
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
