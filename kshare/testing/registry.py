"""An embedded schema registry: HTTP and JSON as Confluent's, which breaks on demand.

Law: what it answers over its socket is Confluent's REST API, as far as serializers and readers use
it: subjects, versions, ids, GUIDs, references, lookups, and errors with their codes. Schemas are
compared as JSON values where they are JSON; those of Protobuf, which are taken as texts and as
descriptors, by their descriptors. They are given as texts, or as descriptors for
``format=serialized``. Compatibility is not checked. Nothing of it is left when it is closed.
"""

import base64
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import token_hex
from typing import Any, ClassVar, Final, Self
from urllib.parse import parse_qsl, unquote, urlsplit
from uuid import NAMESPACE_OID, uuid5

__all__ = ["FakeRegistry"]

_SUBJECT_NOT_FOUND: Final = 40401
_VERSION_NOT_FOUND: Final = 40402
_SCHEMA_NOT_FOUND: Final = 40403
_NO_OWN_LEVEL: Final = 40408
_INVALID_SCHEMA: Final = 42201
_NOT_PERMITTED: Final = 42205
_SERVER_ERROR: Final = 500
_STORE_FAILED: Final = 50001


class _RefusedError(Exception):
    def __init__(self, status: int, code: int, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code


@dataclass
class _State:
    """The content of a registry."""

    by_id: dict[int, dict[str, Any]] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    subjects: dict[str, dict[int, int]] = field(default_factory=dict)  # version -> id
    requests: list[str] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    login: str | None = None
    mode: str = "READWRITE"
    serialized: bool = True
    guids: bool = True
    next_id: int = 1
    lock: threading.RLock = field(default_factory=threading.RLock)


class FakeRegistry:
    """A schema registry in this process, on a port of this machine that the system chooses.

    ::

        with FakeRegistry() as registry:
            registry.register("orders-value", '{"type": "record", ...}')
            ...  # registry.url

    Args:
        first_id: The id of the first schema.
        user_info: ``user:password`` that clients have to give; None: none.
        mode: What it allows: ``READWRITE`` or ``READONLY``.
    """

    def __init__(
        self, *, first_id: int = 1, user_info: str | None = None, mode: str = "READWRITE"
    ) -> None:
        self._state = _State(next_id=first_id, mode=mode)
        if user_info is not None:
            self._state.login = f"Basic {base64.b64encode(user_info.encode()).decode()}"
        self._port = 0
        # Ports come again, and what a registry has answered is kept on the host by its address.
        self._path = f"/{token_hex(8)}"
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self.start()

    @property
    def url(self) -> str:
        """The address; the same after it was stopped and started."""
        return f"http://127.0.0.1:{self._port}{self._path}"

    @property
    def serialized(self) -> bool:
        """True if it gives descriptors of Protobuf where they are asked for; it may be set."""
        return self._state.serialized

    @serialized.setter
    def serialized(self, given: bool) -> None:
        self._state.serialized = given

    @property
    def guids(self) -> bool:
        """True if it gives the GUIDs of schemas, as newer registries do; it may be set."""
        return self._state.guids

    @guids.setter
    def guids(self, given: bool) -> None:
        self._state.guids = given

    @property
    def requests(self) -> tuple[str, ...]:
        """The requests that were answered, such as ``GET /schemas/ids/1``, in their order."""
        return tuple(self._state.requests)

    def start(self) -> None:
        """Answer; a second time does nothing."""
        if self._server is not None:
            return
        handler = type("_Handler", (_Handler,), {"state": self._state, "prefix": self._path})
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), handler)
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True, name="fake registry"
        )
        self._thread.start()

    def stop(self) -> None:
        """Refuse connections, until it is started again. Schemas stay."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            assert self._thread is not None
            self._thread.join()

    close = stop

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fail(self, statuses: Sequence[int]) -> None:
        """Answer the next requests with these HTTP statuses, one each, in this order.

        A 404 is that of a wrong path, as a proxy may answer: it does not say that there is no
        schema.
        """
        with self._state.lock:
            self._state.failures.extend(statuses)

    def register(
        self,
        subject: str,
        schema: str,
        kind: str = "AVRO",
        references: Sequence[Mapping[str, Any]] = (),
    ) -> int:
        """Register a schema, and return its id: the one that it has, if it is known.

        Args:
            subject: The subject.
            schema: The schema.
            kind: ``AVRO``, ``JSON`` or ``PROTOBUF``; this as a file's text, or as its descriptor in
                base64.
            references: What it refers to: ``name``, ``subject`` and ``version`` of each.
        """
        body = {"schema": schema, "schemaType": kind, "references": list(references)}
        number: int = _register(self._state, body, subject)["id"]
        return number


# -- what is answered -----------------------------------------------------------------------------


def _key(body: Mapping[str, Any]) -> str:
    """Equal for the same schemas."""
    kind = body.get("schemaType") or "AVRO"
    text = body.get("schema")
    if not isinstance(text, str):
        raise _RefusedError(422, _INVALID_SCHEMA, "no schema")
    try:
        if kind == "PROTOBUF":
            from kshare.testing.proto_files import registry_forms  # noqa: PLC0415 - an extra

            text = registry_forms(text)[0]
        else:
            text = json.dumps(json.loads(text), sort_keys=kind == "JSON")
    except ValueError as error:
        why = f"it {error}" if kind == "PROTOBUF" else "no JSON"
        raise _RefusedError(422, _INVALID_SCHEMA, f"Invalid schema: {why}") from None
    return json.dumps([kind, text, body.get("references") or []], sort_keys=True)


def _register(state: _State, body: Mapping[str, Any], subject: str) -> dict[str, Any]:
    with state.lock:
        key = _key(body)
        number = state.ids.get(key)
        if number is None:
            number = state.ids[key] = state.next_id
            state.next_id += 1
            state.by_id[number] = {**_entry(body), "guid": str(uuid5(NAMESPACE_OID, key))}
        versions = state.subjects.setdefault(subject, {})
        if number not in versions.values():
            versions[max(versions, default=0) + 1] = number
        return {"id": number, **state.by_id[number]}


def _asked_to_register(state: _State, body: Mapping[str, Any], subject: str) -> dict[str, Any]:
    if state.mode != "READWRITE":
        raise _RefusedError(422, _NOT_PERMITTED, f"Subject {subject} is in read-only mode")
    return _register(state, body, subject)


def _entry(body: Mapping[str, Any]) -> dict[str, Any]:
    kind = body.get("schemaType") or "AVRO"
    entry: dict[str, Any] = {"schema": body["schema"]}
    if kind != "AVRO":
        entry["schemaType"] = kind
    if body.get("references"):
        entry["references"] = body["references"]
    return entry


def _lookup(state: _State, body: Mapping[str, Any], subject: str) -> dict[str, Any]:
    versions = _versions(state, subject)
    number = state.ids.get(_key(body))
    for version, each in versions.items():
        if each == number:
            return _version(state, {}, subject, str(version))
    raise _RefusedError(404, _SCHEMA_NOT_FOUND, "Schema not found")


def _versions(state: _State, subject: str) -> dict[int, int]:
    versions = state.subjects.get(subject)
    if not versions:
        raise _RefusedError(404, _SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")
    return versions


def _given(state: _State, entry: Mapping[str, Any], query: Mapping[str, Any]) -> dict[str, Any]:
    """An entry as a request wants it."""
    if entry.get("schemaType") != "PROTOBUF":
        return dict(entry)
    from kshare.testing.proto_files import registry_forms  # noqa: PLC0415 - an extra

    descriptor, text = registry_forms(entry["schema"])
    is_descriptor = state.serialized and query.get("format") == "serialized"
    return {**entry, "schema": descriptor if is_descriptor else text}


def _version(state: _State, query: Mapping[str, Any], subject: str, which: str) -> dict[str, Any]:
    versions = _versions(state, subject)
    version = max(versions) if which in {"latest", "-1"} else int(which)
    if version not in versions:
        raise _RefusedError(404, _VERSION_NOT_FOUND, f"Version {version} not found.")
    number = versions[version]
    entry = _given(state, state.by_id[number], query)
    return {"subject": subject, "version": version, "id": number, **entry}


def _compatible(state: _State, body: Mapping[str, Any], subject: str, which: str) -> dict[str, Any]:
    _key(body)
    _version(state, {}, subject, which)
    return {"is_compatible": True}


def _no_own_level(_: _State, __: object, subject: str) -> dict[str, Any]:
    text = f"Subject '{subject}' does not have subject-level compatibility configured"
    raise _RefusedError(404, _NO_OWN_LEVEL, text)


def _by_id(state: _State, query: Mapping[str, Any], which: str) -> dict[str, Any]:
    number = int(which)
    if number not in state.by_id:
        raise _RefusedError(404, _SCHEMA_NOT_FOUND, f"Schema {number} not found")
    return _given(state, state.by_id[number], query)


def _by_guid(state: _State, query: Mapping[str, Any], which: str) -> dict[str, Any]:
    for entry in state.by_id.values():
        if entry["guid"] == which.lower():
            return _given(state, entry, query)
    raise _RefusedError(404, _SCHEMA_NOT_FOUND, f"Schema {which} not found")


def _versions_of_id(state: _State, _: object, which: str) -> list[dict[str, Any]]:
    _by_id(state, {}, which)
    return [
        {"subject": subject, "version": version}
        for subject, versions in state.subjects.items()
        for version, number in versions.items()
        if number == int(which)
    ]


def _delete(state: _State, _: object, subject: str) -> list[int]:
    with state.lock:
        versions = _versions(state, subject)
        del state.subjects[subject]
        return list(versions)


_Route = Callable[..., Any]
_ROUTES: Final[tuple[tuple[str, str, _Route], ...]] = (
    ("GET", r"/subjects", lambda state, _: sorted(state.subjects)),
    ("POST", r"/subjects/([^/]+)/versions", _asked_to_register),
    ("GET", r"/subjects/([^/]+)/versions", lambda state, _, name: [*_versions(state, name)]),
    ("GET", r"/subjects/([^/]+)/versions/(latest|-?[0-9]+)", _version),
    ("POST", r"/subjects/([^/]+)", _lookup),
    ("DELETE", r"/subjects/([^/]+)", _delete),
    ("GET", r"/schemas/ids/([0-9]+)", _by_id),
    ("GET", r"/schemas/ids/([0-9]+)/versions", _versions_of_id),
    ("GET", r"/mode", lambda state, _: {"mode": state.mode}),
    ("POST", r"/compatibility/subjects/([^/]+)/versions/(latest|[0-9]+)", _compatible),
    ("GET", r"/v1/metadata/version", lambda *_: {"version": "7.6.0", "commitId": "fake"}),
    ("GET", r"/schemas/guids/([^/]+)", _by_guid),
    ("GET", r"/schemas/types", lambda *_: ["JSON", "PROTOBUF", "AVRO"]),
    ("GET", r"/config", lambda *_: {"compatibilityLevel": "BACKWARD"}),
    ("GET", r"/config/([^/]+)", _no_own_level),
)


class _Handler(BaseHTTPRequestHandler):
    # Of HTTP 1.0: no connection outlives its answer, so one that is stopped answers no more.
    state: ClassVar[_State]
    prefix: ClassVar[str]

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_DELETE = do_PUT = do_GET  # noqa: N815 - http.server's names

    def _serve(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        text = self.rfile.read(size)
        parts = urlsplit(self.path)
        path = parts.path.removeprefix(self.prefix)
        with self.state.lock:
            self.state.requests.append(f"{self.command} {unquote(path)}")
            failure = self.state.failures.pop(0) if self.state.failures else None
        try:
            if failure is not None:
                code = _STORE_FAILED if failure == _SERVER_ERROR else failure
                raise _RefusedError(failure, code, "asked to fail")
            if self.state.login is not None and self.headers["Authorization"] != self.state.login:
                raise _RefusedError(401, 401, "Unauthorized")
            self._answer(
                200, self._routed(path, json.loads(text) if text else dict(parse_qsl(parts.query)))
            )
        except _RefusedError as error:
            self._answer(error.status, {"error_code": error.code, "message": str(error)})

    def _routed(self, path: str, body: Any) -> Any:
        for method, pattern, route in _ROUTES:
            match = re.fullmatch(pattern, path)
            if match and method == self.command:
                return route(self.state, body, *map(unquote, match.groups()))
        raise _RefusedError(404, 404, "HTTP 404 Not Found")

    def _answer(self, status: int, body: Any) -> None:
        if isinstance(body, dict) and not self.state.guids:
            body = {name: value for name, value in body.items() if name != "guid"}
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""
