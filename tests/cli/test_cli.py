"""The command line: help, version and faults."""

import argparse
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import version
from typing import Any, cast

import pytest

import kshare
from kshare import cli
from kshare.cli import EXAMPLES
from kshare.errors import KshareError
from spark_plugin.demo import run as demo
from tests.support.documents import ROOT

COMMANDS = tuple(EXAMPLES)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kshare", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_version() -> None:
    done = run("--version")
    first, second, *others = done.stdout.splitlines()
    assert (done.returncode, first) == (0, f"kshare {kshare.__version__}")
    assert second.startswith("Python 3.")
    named = dict(line.split(" ") for line in others)
    assert named["pyspark"] == version("pyspark")
    assert {"confluent-kafka", "kafka-python", "numpy", "pyarrow", "pydantic"} <= named.keys()
    assert "pandas" not in named


def test_help_names_the_command_and_its_options() -> None:
    done = run("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert f"    {command}" in done.stdout
    done = run("demo", "--help")
    assert done.returncode == 0
    for option in ("bootstrap-servers", "topic", "records", "key-ranges", "seconds"):
        assert f"--{option}" in done.stdout


def test_each_command_is_in_a_group_and_has_examples_that_parse() -> None:
    parser = cli._parser()
    choices = cast(
        "dict[str, argparse.ArgumentParser]",
        next(a for a in parser._actions if a.dest == "command").choices,
    )
    assert set(choices) == set(EXAMPLES)
    shown = parser.format_help()
    assert "others" not in shown
    assert shown.index("of a query:") < shown.index("    status ") < shown.index("of a consumer")
    for name, lines in EXAMPLES.items():
        for line in lines:
            program, *arguments = shlex.split(line)
            assert (program, arguments[0]) == ("kshare", name)
            parser.parse_args(arguments)
            assert f"\n  {line}\n" in choices[name].format_help()


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from kshare.cli import main\n"
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'numba', 'confluent_kafka', 'kafka',\n"
        "         'matplotlib', 'pydantic'}\n"
        f"for command in {COMMANDS!r}:\n"
        "    try:\n"
        "        main([command, '--help'])\n"
        "    except SystemExit:\n"
        "        print('loaded:', command, sorted(heavy & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = [line for line in done.stdout.splitlines() if line.startswith("loaded:")]
    assert loaded == [f"loaded: {command} []" for command in COMMANDS]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["dance"], "invalid choice: 'dance'"),
        (["status"], "required: --checkpoint"),
    ],
)
def test_faults_end_with_code_2(arguments: list[str], fault: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert fault in capsys.readouterr().err


def test_without_a_command_they_are_listed(capsys: Any) -> None:
    assert cli.main([]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert all(f"  {command} " in said.err for command in COMMANDS)


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KshareError("no such thing"), 1, "kshare demo: no such thing\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_what_ends_a_command(
    raised: BaseException, code: int, said: str, monkeypatch: Any, capsys: Any
) -> None:
    def fail(_: object) -> int:
        raise raised

    monkeypatch.setattr(demo, "run", fail)
    assert cli.main(["demo"]) == code
    assert capsys.readouterr().err == said


# -- the package -----------------------------------------------------------------------------------


def test_all_names_of_the_package_are_there() -> None:
    for name in kshare.__all__:
        assert getattr(kshare, name) is not None
    assert set(kshare.__all__) <= set(dir(kshare))
    with pytest.raises(AttributeError, match="'kshare' has no attribute 'nonsense'"):
        _ = kshare.nonsense


INTERRUPTED = """
import sys
import tomllib

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
sys.argv = ["kshare", "status", "--checkpoint", "none"]
from {program} import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    "module", ["kshare.cli", "kshare.cli.arguments", "kshare.core.listing", "kshare.cli.status"]
)
def test_an_interrupt_while_it_imports_is_one_line(module: str) -> None:
    code = INTERRUPTED.format(module=module, program="kshare.console")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_the_program_is_the_one_that_can_be_interrupted() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"]["kshare"] == "kshare.console:main"
