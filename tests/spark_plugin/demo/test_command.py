"""The arguments of ``kshare demo``."""

import pytest

from kshare import cli
from spark_plugin.demo import run as demo


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["demo", "--records", "0"], "'0' is not a whole number above 0"),
        (["demo", "--records", "many"], "'many' is not a whole number above 0"),
        (["demo", "--key-ranges", "-1"], "'-1' is not a whole number above 0"),
        (["demo", "--seconds", "0"], "'0' is not a number of seconds above 0"),
        (["demo", "--seconds", "inf"], "'inf' is not a number of seconds above 0"),
        (["demo", "--topic", "t"], "--topic needs --bootstrap-servers"),
    ],
)
def test_faults_end_with_code_2(
    arguments: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert fault in capsys.readouterr().err


def test_the_demo_gets_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[demo.DemoOptions] = []

    def run(options: demo.DemoOptions) -> int:
        calls.append(options)
        return 0

    monkeypatch.setattr(demo, "run", run)
    assert cli.main(["demo"]) == 0
    arguments = ["--bootstrap-servers", "x:1", "--topic", "t", "--records", "1_0,0"]
    assert cli.main(["demo", *arguments, "--key-ranges", "3", "--seconds", "1.5"]) == 0
    assert calls == [
        demo.DemoOptions(),
        demo.DemoOptions(
            bootstrap_servers="x:1", topic="t", records=100, key_ranges=3, seconds_max=1.5
        ),
    ]


def test_a_cluster_that_does_not_answer_ends_the_demo_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Within 5 s, and not after a question for each of the client's timeouts."""
    assert cli.main(["demo", "--bootstrap-servers", "localhost:1"]) == 1
    said = capsys.readouterr().err
    assert "within 5 s" in said
    assert "Connection refused" in said
