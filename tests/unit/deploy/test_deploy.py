"""The files in deploy/ are read as the programs that they are for read them, and checked against the code they name."""

from __future__ import annotations

import json
import pathlib
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from nanoserve.entrypoints.cli.main import run_command
from nanoserve.entrypoints.compose.config.configuration import ALL_SETTINGS, read_configuration
from nanoserve.entrypoints.compose.config.serve_settings import ListenSettings
from nanoserve.entrypoints.server.watch import health

ROOT = pathlib.Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
DRAIN = ListenSettings().drain_timeout
PROBES = {path for each in health.ROUTES for path in each.paths}
VARIABLES = {each.variable for each in ALL_SETTINGS}
FLAGS = {each.flag for each in ALL_SETTINGS} | {
    each.flag.replace("--", "--no-", 1) for each in ALL_SETTINGS if each.default is True
}


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    parsed = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    return {each["kind"]: each for each in parsed}


@pytest.fixture(scope="module")
def pod(manifests: dict[str, Any]) -> Any:
    return manifests["Deployment"]["spec"]["template"]["spec"]


def instructions() -> list[tuple[str, str, str]]:
    """The Dockerfile as (stage, instruction, arguments), with continued lines joined and comments dropped."""
    lines = [
        line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")
    ]
    found, stage = [], ""
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if line.strip():
            name, _, arguments = line.partition(" ")
            if name == "FROM":
                stage = arguments.split()[-1]
            found.append((stage, name, arguments))
    return found


def flags_in(command: str | list[str]) -> set[str]:
    words = shlex.split(command) if isinstance(command, str) else command
    return {each.partition("=")[0] for each in words if each.startswith("--")}


def unit() -> dict[str, dict[str, list[str]]]:
    """The systemd unit: sections of keys that may come several times."""
    sections: dict[str, dict[str, list[str]]] = {}
    current: dict[str, list[str]] = {}
    for line in (DEPLOY / "nanoserve.service").read_text().splitlines():
        if line.startswith("["):
            current = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            assert equals, f"{line!r} is neither a section nor a setting"
            current.setdefault(name, []).append(value)
    return sections


# Kubernetes


def test_the_probes_are_routes_that_need_no_key(pod: Any) -> None:
    (container,) = pod["containers"]
    paths = {
        name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")
    }
    assert paths == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/livez"}
    assert set(paths.values()) <= PROBES
    ports = {each["name"] for each in container["ports"]}
    assert all(container[f"{name}Probe"]["httpGet"]["port"] in ports for name in paths)


def test_a_pod_has_time_to_drain(pod: Any) -> None:
    (container,) = pod["containers"]
    args = container["args"]
    drain = float(args[args.index("--drain-timeout") + 1])
    command, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert drain == DRAIN
    assert command == "sleep"
    assert pod["terminationGracePeriodSeconds"] >= float(seconds) + drain + 5
    readiness = container["readinessProbe"]
    assert float(seconds) > readiness["periodSeconds"] * readiness["failureThreshold"]


def test_a_pod_names_only_what_there_is(manifests: dict[str, Any], pod: Any) -> None:
    (container,) = pod["containers"]
    assert flags_in(container["args"]) <= FLAGS
    assert {each["name"] for each in container["env"]} <= VARIABLES
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert manifests["Service"]["spec"]["selector"].items() <= labels.items()
    assert manifests["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (port,) = manifests["Service"]["spec"]["ports"]
    assert port["targetPort"] in {each["name"] for each in container["ports"]}
    secrets = {each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
    assert secrets == {manifests["Secret"]["metadata"]["name"]}
    claims = {
        each["persistentVolumeClaim"]["claimName"]
        for each in pod["volumes"]
        if "persistentVolumeClaim" in each
    }
    assert claims == {manifests["PersistentVolumeClaim"]["metadata"]["name"]}


def test_a_service_of_our_name_sets_none_of_our_variables(manifests: dict[str, Any], pod: Any) -> None:
    """Kubernetes announces services in the environment as NAME_PORT, which is the server's own setting here."""
    name = manifests["Service"]["metadata"]["name"].upper().replace("-", "_")
    assert f"{name}_PORT" in VARIABLES
    assert pod["enableServiceLinks"] is False


def test_a_pod_may_do_little(pod: Any) -> None:
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["automountServiceAccountToken"] is False


# Several servers and a router


@pytest.fixture(scope="module")
def replicas() -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes-replicas.yaml").read_text()))


@pytest.fixture(scope="module")
def services() -> Any:
    return composed("compose-replicas.yaml")


def composed(file: str) -> Any:
    """The services of a compose file, whose volumes, secrets and images all come from somewhere."""
    parsed = yaml.safe_load((DEPLOY / file).read_text())
    stages = {stage for stage, _, _ in instructions()}
    for service in parsed["services"].values():
        named = {each.partition(":")[0] for each in service.get("volumes", ())}
        assert named <= set(parsed["volumes"])
        assert set(service.get("secrets", ())) <= set(parsed.get("secrets", ()))
        assert service["build"]["target"] in stages
        assert service["image"] == f"nanoserve:{service['build']['target']}"
        assert (DEPLOY / service["build"]["context"]).resolve() == ROOT
        assert (ROOT / service["build"]["dockerfile"]).is_file()
    return parsed["services"]


def _of_kind(documents: list[Any], kind: str) -> Any:
    (found,) = [each for each in documents if each["kind"] == kind]
    return found


def _routed_to(words: list[str]) -> set[str]:
    """The addresses that a router's arguments name."""
    return set(re.findall(r"http://([\w.:-]+)", " ".join(words)))


def test_the_router_of_the_pods_names_each_of_them(replicas: list[Any]) -> None:
    servers, router = _of_kind(replicas, "StatefulSet"), _of_kind(replicas, "Deployment")
    headless, entrance = (each["spec"] for each in replicas if each["kind"] == "Service")
    (server,) = servers["spec"]["template"]["spec"]["containers"]
    (routing,) = router["spec"]["template"]["spec"]["containers"]
    names = [f"{servers['metadata']['name']}-{number}" for number in range(servers["spec"]["replicas"])]
    port = server["ports"][0]["containerPort"]
    assert _routed_to(routing["args"]) == {
        f"{each}.{servers['spec']['serviceName']}:{port}" for each in names
    }
    assert headless["clusterIP"] == "None"
    for selecting, workload in (
        (headless["selector"], servers),
        (_of_kind(replicas, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"], servers),
        (entrance["selector"], router),
    ):
        assert workload["spec"]["selector"]["matchLabels"] == selecting
        assert workload["spec"]["template"]["metadata"]["labels"] == selecting


def test_both_kinds_of_pods_name_what_there_is_and_have_time_to_drain(replicas: list[Any]) -> None:
    for kind in ("StatefulSet", "Deployment"):
        spec = _of_kind(replicas, kind)["spec"]
        pod = spec["template"]["spec"]
        (container,) = pod["containers"]
        assert flags_in(container["args"]) <= FLAGS
        assert {each["name"] for each in container["env"]} <= VARIABLES
        claims = {each["metadata"]["name"] for each in spec.get("volumeClaimTemplates", ())}
        volumes = {each["name"] for each in pod["volumes"]} | claims
        assert {each["name"] for each in container["volumeMounts"]} == volumes
        assert {container[f"{each}Probe"]["httpGet"]["path"] for each in ("readiness", "liveness")} <= PROBES
        assert pod["terminationGracePeriodSeconds"] >= 5 + DRAIN + 5
        assert pod["enableServiceLinks"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_one_server_on_a_cpu_or_one_gpu() -> None:
    services = composed("compose.yaml")
    port = ListenSettings().port
    for name, service in services.items():
        assert service["profiles"] == [name], "up without a name starts neither, or both on one port"
        assert service["ports"] == [f"127.0.0.1:{port}:{port}"]
        assert flags_in(service["command"]) <= FLAGS
        ours = {each for each in service["environment"] if each.startswith("NANOSERVE_")}
        assert ours <= VARIABLES
        assert float(service["stop_grace_period"].removesuffix("s")) >= DRAIN + 10
        assert service["init"] is False
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
    model = re.fullmatch(r"\$\{NANOSERVE_MODEL:-(.*)\}", services["cpu"]["environment"]["NANOSERVE_MODEL"])
    assert model is not None
    assert read_configuration({}, {"NANOSERVE_MODEL": model[1]}).engine.model is None, "the model in the box"
    (device,) = services["gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    assert "deploy" not in services["cpu"]


@pytest.mark.parametrize("file", ["compose.yaml", "compose-replicas.yaml"])
def test_the_command_line_reads_what_containers_run(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Values and variables, too; `${NAME:-value}` is the value where nothing sets it."""
    for service in composed(file).values():
        with monkeypatch.context() as container:
            for name, value in service.get("environment", {}).items():
                container.setenv(name, re.sub(r"\$\{\w+:-(.*)\}", r"\1", value))
            assert run_command([*service["command"], "--print-config"]) == 0
        shown = capsys.readouterr()
        assert shown.err == ""
        for name in flags_in(service["command"]):
            assert re.search(rf"^{name[2:].replace('-', '_')} .* {name}", shown.out, re.MULTILINE), name


def test_the_router_of_the_containers_names_each_of_them(services: Any) -> None:
    port = ListenSettings().port
    servers = {name for name, each in services.items() if each["command"][0] == "serve"}
    assert _routed_to(services["router"]["command"]) == {f"{each}:{port}" for each in servers}
    assert services["router"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    for service in services.values():
        assert flags_in(service["command"]) <= FLAGS
        assert set(service.get("environment", ())) <= VARIABLES
        assert float(service["stop_grace_period"].removesuffix("s")) >= DRAIN + 10
        assert service["init"] is False
    gpus = [
        service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for name, service in services.items()
        if name in servers
    ]
    assert len(set(map(tuple, gpus))) == len(servers)


# The image


def test_every_stage_begins_at_one_that_exists() -> None:
    known = set()
    for stage, name, arguments in instructions():
        if name == "FROM":
            base = arguments.split()[0]
            assert base in known or ":" in base, f"{base} is neither a stage nor a tagged image"
            known.add(stage)
        for source in re.findall(r"from=([\w-]+)", arguments):
            assert source in known
    assert {"cpu", "cuda"} <= known


def test_the_dockerfile_uses_instructions_that_there_are() -> None:
    words = "FROM RUN COPY ENV WORKDIR VOLUME EXPOSE STOPSIGNAL ENTRYPOINT CMD HEALTHCHECK USER"
    assert {name for _, name, _ in instructions()} <= set(words.split())


@pytest.mark.parametrize("image", ["cpu", "cuda"])
def test_an_image_has_no_rights_and_gets_the_signal(image: str) -> None:
    ours = [(name, arguments) for stage, name, arguments in instructions() if stage in {"runtime", image}]
    assert ours[-1][0] == "USER" or dict(ours)["USER"] == "10001:10001"
    assert dict(ours)["USER"].split(":")[0] not in {"0", "root"}
    assert json.loads(dict(ours)["ENTRYPOINT"]) == ["nanoserve"], "a shell would keep SIGTERM to itself"
    assert json.loads(dict(ours)["CMD"]) == ["serve"]
    assert dict(ours)["STOPSIGNAL"] == "SIGTERM"


def test_an_image_sets_variables_that_there_are_and_copies_files_that_there_are() -> None:
    text = " ".join(arguments for _, name, arguments in instructions() if name == "ENV")
    ours = set(re.findall(r"NANOSERVE_\w+", text))
    assert ours
    assert ours <= VARIABLES
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for _, name, arguments in instructions():
        if name == "COPY":
            for source in arguments.split()[:-1]:
                assert (ROOT / source).exists()
                assert f"!{source.removeprefix('./')}" in ignored, "the build would not see it"


def test_an_image_asks_a_probe_whether_it_is_well() -> None:
    (check,) = [arguments for _, name, arguments in instructions() if name == "HEALTHCHECK"]
    path = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", check)
    assert path is not None
    assert path[2] in PROBES
    assert int(path[1]) == ListenSettings().port
    compile(json.loads(check[check.index("CMD ") + 4 :])[2], "healthcheck", "exec")


def test_the_cpu_image_takes_the_torch_that_the_package_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = [each for each in project["dependencies"] if each.startswith("torch")]
    assert f'"{wanted}"' in (DEPLOY / "Dockerfile").read_text()


# The unit

DIRECTIVES = {
    "Unit": "Description Wants After StartLimitIntervalSec StartLimitBurst",
    "Service": "Type DynamicUser EnvironmentFile LoadCredential CacheDirectory Environment ExecStart KillMode "
    "KillSignal TimeoutStopSec Restart RestartSec LimitNOFILE LimitMEMLOCK NoNewPrivileges CapabilityBoundingSet "
    "AmbientCapabilities ProtectSystem ProtectHome PrivateTmp ProtectClock ProtectControlGroups ProtectHostname "
    "ProtectKernelLogs ProtectKernelModules ProtectKernelTunables RestrictAddressFamilies RestrictNamespaces "
    "RestrictRealtime RestrictSUIDSGID LockPersonality SystemCallArchitectures SystemCallFilter SystemCallErrorNumber "
    "UMask DevicePolicy DeviceAllow",
    "Install": "WantedBy",
}


def test_the_unit_file_is_valid() -> None:
    parsed = unit()
    assert set(parsed) == set(DIRECTIVES)
    for section, settings in parsed.items():
        assert set(settings) <= set(DIRECTIVES[section].split())
        several = {"Environment", "DeviceAllow"}
        assert all(len(values) == 1 for name, values in settings.items() if name not in several)


def test_a_stop_drains_and_a_death_restarts() -> None:
    service = unit()["Service"]
    assert service["KillMode"] == ["mixed"], "the engine must outlive the drain"
    assert service["KillSignal"] == ["SIGTERM"]
    assert float(service["TimeoutStopSec"][0]) >= DRAIN + 10
    assert service["Restart"] == ["always"]


def test_the_unit_names_only_what_there_is() -> None:
    service = unit()["Service"]
    (command,) = service["ExecStart"]
    assert " serve " in command
    assert flags_in(command) <= FLAGS
    variables = {each.partition("=")[0] for each in service["Environment"]}
    assert {each for each in variables if each.startswith("NANOSERVE_")} <= VARIABLES
    (credential,) = service["LoadCredential"]
    assert f"%d/{credential.partition(':')[0]}" in command


# The page


def test_every_file_is_explained() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    for file in DEPLOY.iterdir():
        assert f"../deploy/{file.name}" in page, f"docs/deploy.md does not lead to {file.name}"


def blocks(page: str) -> Iterator[tuple[str, str]]:
    text = (ROOT / "docs" / page).read_text()
    yield from re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["deploy.md", "server.md"])
def test_what_the_pages_name_exists(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    own = {name for line in text.splitlines() for name in re.findall(r"`(--[a-z][a-z-]+)", line)}
    others = {
        "--api-key",
        "--target",
        "--gpus",
        "--stop-timeout",
        "--json",
        "--plot",
        "--print-config",
        "--from-file",
        *("--json-schema", "--regex", "--choice", "--file"),
    }
    assert own <= FLAGS | others
    assert set(re.findall(r"NANOSERVE_[A-Z_]+[A-Z]", text)) <= VARIABLES | {
        "NANOSERVE_NAME",
        "NANOSERVE_CONFIG",
    }
    for language, code in blocks(page):
        if language == "json":
            json.loads(code)
        elif language == "yaml":
            assert isinstance(list(yaml.safe_load_all(code)), list)
        elif language == "toml":
            tomllib.loads(code)


def test_prometheus_asks_where_the_metrics_are() -> None:
    parsed: Mapping[str, Any] = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    (job,) = parsed["scrape_configs"]
    assert job["metrics_path"] == "/metrics"
    assert job["authorization"]["credentials_file"]
    assert all((DEPLOY / each).exists() for each in parsed["rule_files"])
    assert job["static_configs"][0]["targets"] == [f"127.0.0.1:{ListenSettings().port}"]
