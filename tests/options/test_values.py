"""Options as values: equal, hashed, and without secrets."""

import copy
import dataclasses
import logging
import pickle
import subprocess
import sys
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kshare.options
from kshare.errors import OptionsError
from kshare.options import model, parse_options
from kshare.options.frozen import HIDDEN, FrozenMapping, Properties, Secret
from tests.support.options import BASE, SECRET, options

# -- values ---------------------------------------------------------------------------------------


def test_options_are_values() -> None:
    first, second = options({"minPartitions": "3"}), options({"minPartitions": "3"})
    assert first == second
    assert hash(first) == hash(second)
    assert pickle.loads(pickle.dumps(first)) == first == copy.deepcopy(first)
    assert pickle.dumps(first) == pickle.dumps(second)
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.min_partitions = 4  # type: ignore[misc]


@given(st.dictionaries(st.text(), st.integers()))
def test_a_frozen_mapping_is_a_mapping_with_a_hash(items: dict[str, int]) -> None:
    frozen = FrozenMapping(items)
    assert frozen == items
    assert items == dict(frozen)
    assert len(frozen) == len(items)
    turned = FrozenMapping(dict(reversed(items.items())))
    assert frozen == turned
    assert hash(frozen) == hash(turned)
    assert pickle.loads(pickle.dumps(frozen)) == frozen
    assert (frozen != {**items, "more": 1}) or "more" in items
    before = dict(items)
    items["later"] = len(items)
    assert frozen == before
    assert FrozenMapping() == {}


def test_a_secret_is_shown_to_those_who_ask() -> None:
    secret = Secret(SECRET)
    assert secret.reveal() == SECRET
    assert f"{secret} {secret!r}" == f"{HIDDEN} {HIDDEN}"
    assert secret == Secret(SECRET) != Secret("other")
    assert hash(secret) == hash(Secret(SECRET))
    assert pickle.loads(pickle.dumps(secret)) == secret
    assert secret != SECRET


def test_properties_show_their_names_only() -> None:
    properties = Properties({"a": SECRET, "b": "c"})
    assert f"{properties}" == repr(properties) == "Properties(a, b)"
    assert pickle.loads(pickle.dumps(properties)) == properties
    assert isinstance(pickle.loads(pickle.dumps(properties)), Properties)


def test_no_traceback_shows_what_was_given(caplog: pytest.LogCaptureFixture) -> None:
    given = {**BASE, "kafka.sasl.jaas.config": SECRET, "kafka.security.protocol": "SASL_SSL"}
    with pytest.raises(OptionsError) as caught:
        parse_options(given, streaming=True)
    frames = [frame for frame, _ in traceback.walk_tb(caught.tb)]
    own = [frame for frame in frames if frame.f_globals["__name__"].startswith("kshare.")]
    assert own
    for frame in own:
        assert SECRET not in repr(frame.f_locals)
    logging.getLogger("kshare").error("%r", caught.value)
    assert SECRET not in caplog.text


def test_the_package_gives_the_values_and_both_parsers() -> None:
    given = {name: getattr(kshare.options, name) for name in kshare.options.__all__}
    own = {"ParsedSinkOptions", "SinkOptions", "parse_options", "parse_sink_options"}
    assert len(given) == len(kshare.options.__all__)
    assert given == {
        **{name: given[name] for name in own},
        **{name: getattr(model, name) for name in model.__all__},
    }


def test_planning_needs_no_heavy_module() -> None:
    code = (
        "import sys; from kshare.options import parse_options; "
        "parse_options({'subscribe': 't', 'kafka.bootstrap.servers': 'b:1'}, streaming=True); "
        "print([m for m in ('numba', 'numpy', 'pyarrow', 'kafka', 'confluent_kafka', 'pydantic', "
        "'cryptography', 'ssl', 'kshare.options.sink') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
