"""Image, compose file and manifests: what can be checked without a container runtime."""

import json
import os
import re
import runpy
import subprocess
import tomllib
import zipfile
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pyspark
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import kshare
from kshare._version import __version__
from kshare.group import KeySharedConsumer
from kshare.testing import FakeCluster
from tests.docker.dashboard import alerts, dashboard, labels, metrics, targets
from tests.support.clock import WAIT_S
from tests.support.documents import ROOT, documents
from tests.support.groups import quick_settings

DOCKER = ROOT / "docker"
SCHEMAS = ROOT / "tests/docker/schemas"
DEMO = {file.name for file in (DOCKER / "demo").glob("*.py")}


def compose() -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    return parsed


def manifests() -> list[dict[str, Any]]:
    return [
        document
        for file in sorted((DOCKER / "kubernetes").glob("*.yaml"))
        for document in yaml.safe_load_all(file.read_text())
    ]


# -- compose ---------------------------------------------------------------------------------------


def test_the_compose_file_has_the_specified_shape() -> None:
    home = files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    jsonschema.Draft202012Validator(json.loads(home.read_text())).validate(compose())


def test_what_services_wait_for_and_mount_is_there() -> None:
    parsed = compose()
    services = parsed["services"]
    assert {"kafka", "spark-master", "prometheus", "grafana", "query", "consumer"} <= set(services)
    assert sum("Worker" in str(service.get("command")) for service in services.values()) == 2
    for name, service in services.items():
        waits = service.get("depends_on", {})
        assert set(waits) <= set(services), name
        if isinstance(waits, dict):
            for other, wait in waits.items():
                needs_check = wait["condition"] == "service_healthy"
                assert not needs_check or "healthcheck" in services[other], (name, other)
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DOCKER / source).exists(), volume
            else:
                assert source in parsed["volumes"], volume
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} listens for everybody"
        for script in re.findall(r"/opt/demo/([\w.]+)", str(service.get("command"))):
            assert script in DEMO


def test_prometheus_scrapes_the_services() -> None:
    config = yaml.safe_load((DOCKER / "prometheus/prometheus.yml").read_text())
    query, group = config["scrape_configs"]
    assert query["static_configs"] == [{"targets": ["query:9400"]}]
    assert group["dns_sd_configs"][0]["names"] == ["consumer"]
    assert config["rule_files"] == ["alerts.yml"]


# -- the image -------------------------------------------------------------------------------------


def test_the_image_is_made_of_what_there_is() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    ignored = (ROOT / ".dockerignore").read_text().split("\n")
    copies = re.findall(r"^COPY (?!--from)(\S+) ", text, re.MULTILINE)
    assert copies == [
        *(".", "docker/constraints.txt"),
        *("docker/entrypoint.sh", "docker/demo"),
    ]
    for path in copies[1:]:
        assert (ROOT / path).exists()
        assert f"!{path}" in ignored
    # What the wheel is built from.
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    wheel = build["targets"]["wheel"]
    sources = {*wheel["packages"], *wheel["force-include"], "pyproject.toml", "hatch_build.py"}
    for name in sources | {"README.md", "LICENSE"}:
        assert f"!{name}" in ignored, name


def test_the_image_installs_nothing_without_a_hash() -> None:
    """What the wheel and two extras need is pinned; so is what that needs, or pip would refuse."""
    text = (DOCKER / "Dockerfile").read_text()
    assert "--require-hashes --requirement /opt/constraints.txt" in text
    assert "--no-deps /wheels/kshare-*.whl" in text
    joined = (DOCKER / "constraints.txt").read_text().replace("\\\n", " ")
    pinned: dict[str, list[SpecifierSet]] = {}
    for line in filter(re.compile(r"\w").match, joined.splitlines()):
        requirement, *hashes = line.split(" --hash=")
        assert hashes, line
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}\s*", each) for each in hashes), line
        found = Requirement(requirement.strip())
        assert str(found.specifier).startswith("=="), line
        pinned.setdefault(canonicalize_name(found.name), []).append(found.specifier)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for text in (*project["dependencies"], *extras["pandas"], *extras["prometheus"]):
        wanted = Requirement(text)
        for specifier in pinned[canonicalize_name(wanted.name)]:
            assert wanted.specifier.contains(str(specifier).removeprefix("==")), text


def entrypoint(tmp_path: Path, *arguments: str, **given: str) -> list[str]:
    """What the image's entry point runs: programs that print their arguments take its place."""
    for name in ("java", "spark-submit", "kshare"):
        program = tmp_path / name
        program.write_text('#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n')
        program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    command = [str(DOCKER / "entrypoint.sh"), *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PATH": path, "SPARK_HOME": "/opt/spark", **given},
    )
    return done.stdout.splitlines()


def test_the_entry_point_runs_drivers_executors_and_commands(tmp_path: Path) -> None:
    assert entrypoint(tmp_path, "kshare", "doctor") == ["kshare", "doctor"]
    driver = ("driver", "--properties-file", "/conf", "local:///opt/demo/query.py", "a b")
    assert entrypoint(tmp_path, *driver, SPARK_DRIVER_BIND_ADDRESS="10.0.0.7") == [
        *("spark-submit", "--conf", "spark.driver.bindAddress=10.0.0.7"),
        *("--conf", "spark.executorEnv.SPARK_DRIVER_POD_IP=10.0.0.7", "--deploy-mode", "client"),
        *("--properties-file", "/conf", "local:///opt/demo/query.py", "a b"),
    ]
    given = {
        "SPARK_JAVA_OPT_0": "-Dspark.driver.port=7078",
        "SPARK_JAVA_OPT_1": "-Dwith=a space",
        "SPARK_EXECUTOR_MEMORY": "1g",
        "SPARK_DRIVER_URL": "spark://driver",
        "SPARK_EXECUTOR_ID": "3",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "pod",
    }
    said = entrypoint(tmp_path, "executor", **given)
    assert said[:6] == [
        *("java", "-Dspark.driver.port=7078", "-Dwith=a space", "-Xms1g", "-Xmx1g", "-cp"),
    ]
    assert said[6] == f"/opt/spark/conf::/opt/spark/jars/*:{tmp_path}"
    name = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    assert said[7:] == [
        *(name, "--driver-url", "spark://driver", "--executor-id", "3", "--cores", "2"),
        *("--app-id", "app", "--hostname", "10.0.0.8", "--resourceProfileId", "0"),
        *("--podName", "pod"),
    ]
    # PySpark as pip installs it can do that.
    (jar,) = (Path(pyspark.__path__[0]) / "jars").glob("spark-kubernetes_*.jar")
    assert f"{name.replace('.', '/')}.class" in zipfile.ZipFile(jar).namelist()


# -- Kubernetes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("manifest", manifests(), ids=lambda each: each["kind"])
def test_manifests_have_their_schemas_shape(manifest: dict[str, Any]) -> None:
    schema = SCHEMAS / f"{manifest['kind'].lower()}-{manifest['apiVersion'].split('/')[-1]}.json"
    if schema.exists():
        jsonschema.validate(manifest, json.loads(schema.read_text()))
    else:
        kubernetes_validate.validate(manifest, "1.37", strict=True)


def confined(place: dict[str, Any], volumes: list[dict[str, Any]]) -> bool:
    """True if a container may do no more than its work."""
    context = place["securityContext"]
    mounted = {volume["name"] for volume in volumes if "emptyDir" in volume}
    return (
        context["readOnlyRootFilesystem"] is context["runAsNonRoot"] is True
        and context["allowPrivilegeEscalation"] is False
        and context["runAsUser"] == 185  # the image's
        and context["capabilities"] == {"drop": ["ALL"]}
        and context["seccompProfile"] == {"type": "RuntimeDefault"}
        and {"/tmp"} == {mount["mountPath"] for mount in place["volumeMounts"]}
        and {mount["name"] for mount in place["volumeMounts"]} <= mounted
    )


def test_pods_may_do_no_more_than_their_work() -> None:
    seen = 0
    for manifest in manifests():
        spec = manifest.get("spec", {})
        if manifest["kind"] == "SparkApplication":
            assert confined(spec["driver"], spec["volumes"])
            assert confined(spec["executor"], spec["volumes"])
            seen += 2
        elif pod := spec.get("template", {}).get("spec"):
            assert all(confined(each, pod["volumes"]) for each in pod["containers"])
            seen += 1
    assert seen == 4


def test_a_wrong_manifest_does_not_pass() -> None:
    wrong = {"ScaledObject": ["scaleTargetRef", "nam"], "SparkApplication": ["driver", "core"]}
    for manifest in manifests():
        if manifest["kind"] in wrong:
            part, name = wrong[manifest["kind"]]
            manifest["spec"][part][name] = "x"
            with pytest.raises(jsonschema.ValidationError, match=f"'{name}' was unexpected"):
                test_manifests_have_their_schemas_shape(manifest)


def test_what_manifests_name_is_there() -> None:
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for manifest in manifests():
        by_kind.setdefault(manifest["kind"], []).append(manifest)
    (deployment,) = by_kind["Deployment"]
    pods = deployment["spec"]["template"]
    (container,) = pods["spec"]["containers"]
    for probe, path in {
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
        "startupProbe": "/healthz",
    }.items():
        assert container[probe]["httpGet"] == {"path": path, "port": "metrics"}
    assert [port["name"] for port in container["ports"]] == ["metrics"]
    (query,) = by_kind["SparkApplication"]
    started = [*container["args"], query["spec"]["mainApplicationFile"]]
    assert {each.rpartition("/")[2] for each in started if each.endswith(".py")} <= DEMO
    for image in (container["image"], query["spec"]["image"]):
        assert image.endswith(f":{__version__}")
    budgets = {each["metadata"]["name"]: each["spec"] for each in by_kind["PodDisruptionBudget"]}
    assert budgets["billing"]["selector"]["matchLabels"] == pods["metadata"]["labels"]
    (scaled,) = by_kind["ScaledObject"]
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metadata"]["allowIdleConsumers"] == "true"
    assert (
        f'"group.id": "{trigger["metadata"]["consumerGroup"]}"'
        in (DOCKER / "demo/consumer.py").read_text()
    )


def test_pods_with_ranges_know_their_number_and_how_many_they_are() -> None:
    (stateful,) = (each for each in manifests() if each["kind"] == "StatefulSet")
    spec = stateful["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    env = {each["name"]: each for each in container["env"]}
    assert env["PODS"]["value"] == str(spec["replicas"])
    assert env["POD"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    python, script, *_, partitions, pod, pods, _ = container["args"]
    assert [partitions, pod, pods] == ["$(PARTITIONS)", "$(POD)", "$(PODS)"]
    assert (python, script.rpartition("/")[2] in DEMO) == ("python", True)
    assert container["image"].endswith(f":{__version__}")
    labels = spec["template"]["metadata"]["labels"]
    (service,) = (each for each in manifests() if each["kind"] == "Service")
    assert (service["metadata"]["name"], service["spec"]["selector"]) == (
        spec["serviceName"],
        labels,
    )
    budgets = [each for each in manifests() if each["kind"] == "PodDisruptionBudget"]
    assert labels in [each["spec"]["selector"]["matchLabels"] for each in budgets]
    # Pods that divide the hashes otherwise must not run beside each other for long.
    assert spec["updateStrategy"] == {"type": "OnDelete"}


def test_pods_with_ranges_have_each_record_once() -> None:
    demo = runpy.run_path(str(DOCKER / "demo/ranges.py"))
    with FakeCluster(topics={"orders": 2}) as cluster:
        for partition in range(2):
            cluster.produce("orders", [(f"k{i}", f"{i}") for i in range(60)], partition=partition)
        got: Counter[tuple[int, int]] = Counter()
        for number in range(3):
            config = quick_settings(cluster.bootstrap_servers)
            assigned = demo["assignment"]("orders", 2, f"shipping-{number}", 3)
            with KeySharedConsumer(config) as consumer:
                consumer.assign(assigned)
                wanted = sum(
                    kshare.key_hash(f"k{i}".encode(), i) in part
                    for i in range(60)
                    for ranges in assigned.values()
                    for part in ranges
                )
                messages = consumer.consume(wanted, WAIT_S)
                got.update((message.partition(), message.offset()) for message in messages)
        assert got == {(partition, offset): 1 for partition in range(2) for offset in range(60)}
    with pytest.raises(SystemExit, match="for 3 pods"):
        demo["assignment"]("orders", 2, "shipping-3", 3)


# -- the dashboard and the alerts ------------------------------------------------------------------


def test_the_dashboard_is_one_of_grafana() -> None:
    """Read by Grafana's own models and written again, nothing of it is lost."""
    register_default_plugins()
    read = Dashboard.from_json(dashboard())
    assert _missing(dashboard(), json.loads(JSONEncoder(sort_keys=True).encode(read))) == []


def _missing(given: Any, read: Any, path: str = "") -> list[str]:
    if isinstance(given, dict) and isinstance(read, dict):
        return [
            fault
            for name in given
            for fault in (
                _missing(given[name], read[name], f"{path}.{name}")
                if name in read
                else [f"{path}.{name}"]
            )
        ]
    if isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        pairs = zip(given, read, strict=True)
        return [f for n, (a, b) in enumerate(pairs) for f in _missing(a, b, f"{path}[{n}]")]
    return [] if given == read else [f"{path}: {given!r} is read as {read!r}"]


def test_panels_have_a_source_and_do_not_overlap() -> None:
    board = dashboard()
    cells: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert x < 24
                assert cells.setdefault((x, y), panel["title"]) == panel["title"]
        assert panel["type"] == "row" or panel["targets"]
    provisioned = DOCKER / "grafana/provisioning"
    (source,) = yaml.safe_load((provisioned / "datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    assert board["templating"]["list"][0]["current"]["value"] == source["uid"]
    (provider,) = yaml.safe_load((provisioned / "dashboards/kshare.yaml").read_text())["providers"]
    mounts = {v.split(":")[1] for v in compose()["services"]["grafana"]["volumes"]}
    assert provider["options"]["path"] in mounts


def test_metrics_of_dashboard_and_alerts_are_documented() -> None:
    text = (ROOT / "docs/monitoring.md").read_text()
    asked = {name for target in targets() for name in metrics(target.expression)}
    asked |= {name for rule in alerts() for name in metrics(rule["expr"])}
    for name in asked:
        short = re.sub(r"^kshare_((consumer|processor)_)?|_(bucket|count)$", "", name)
        assert f"`{short}`" in text, name


def test_each_alert_has_a_runbook() -> None:
    (page,) = (each for each in documents() if each.path == "docs/runbooks.md")
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names))
    for rule in alerts():
        anchor = rule["alert"].lower()
        assert rule["annotations"]["runbook"] == f"docs/runbooks.md#{anchor}"
        assert anchor in page.anchors
    runbooks = (ROOT / "docs/runbooks.md").read_text()
    parts = re.split(r"^### (\w+)\n", runbooks, flags=re.MULTILINE)[1:]
    assert set(parts[::2]) == set(names)
    for text in parts[1::2]:
        assert re.findall(r"^\*\*(Meaning|Look at|Do)", text, re.MULTILINE) == [
            "Meaning",
            "Look at",
            "Do",
        ]


def test_labels_are_found_in_expressions() -> None:
    found = labels('sum by (group, le) (x{topic=~".*"}) / on (query) group_left y', "{{member}} of")
    assert found == {"group", "topic", "query", "member"}
