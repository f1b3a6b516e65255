"""The chart's values: closed, documented, used, and as the code has them. None of this needs Helm."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import annotated_types
import pytest
from jsonschema import Draft7Validator  # type: ignore[import-untyped]
from pydantic_settings import BaseSettings
from tests.support.repository import ROOT
from tests.support.services.deploy_files import SETTINGS
from tests.support.services.helm_chart import SCHEMA, SETS, TEMPLATES, read_yaml, values_of
from tools.chart import CHART, README, default_of, leaves, with_table

from understudy_shared.fleet.applications_file import ApplicationSpec

VALUES = read_yaml(CHART / "values.yaml")
FILES_OF_SECRETS = {
    *("cluster_secret_file", "credentials_file", "gossip_key_file", "insecure_bind"),
    *("redis_ca_file", "redis_cert_file", "redis_key_file", "redis_password_file"),
}
CERTIFICATES = {"external_tls_termination", "peer_ca_file", "peer_cert_file"}
CERTIFICATES |= {"peer_key_file", "tls_cert_file", "tls_key_file"}

GIVEN_BY_THE_CHART = {
    "node": {
        *FILES_OF_SECRETS,
        *CERTIFICATES,
        *("advertise_host", "advertise_port", "aliases", "application_id", "checkpoint", "data_dir", "host", "node_id"),
        *("port", "redis", "seed", "store_bounds", "zone"),
        "cache_max_bytes_buffering",  # the deprecated name
    },
    "router": {
        *FILES_OF_SECRETS,
        *CERTIFICATES,
        *("application_id", "data_dir", "host", "port", "redis", "seed", "shutdown_delay_ms", "store_bounds"),
        "applications",  # a value of its own
        "router_id",  # the name of its pod
    },
    "pipeline": {"application_id", "checkpoint", "redis"},
}
DEFINITIONS = {"node": "nodeSettings", "router": "routerSettings", "pipeline": "demoSettings"}


def objects(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema of an object, wherever it stands."""
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield path, schema
        for name, each in schema.items():
            yield from objects(each, f"{path}/{name}")


def errors(values: object) -> list[str]:
    return [error.message for error in Draft7Validator(SCHEMA).iter_errors(values)]


def test_every_object_of_the_schema_is_closed_or_maps_names_to_strings() -> None:
    open_ones = {
        path
        for path, each in objects(SCHEMA)
        if each.get("additionalProperties") is not False and each.get("additionalProperties") != {"type": "string"}
    }
    assert open_ones == {"/properties/global", "/definitions/kubernetes"}


def test_the_schema_is_one_and_accepts_the_default() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert errors(VALUES) == []


@pytest.mark.parametrize("name", SETS)
def test_the_schema_accepts_each_set_of_values(name: str) -> None:
    def merged(base: Any, over: Any) -> Any:
        if not isinstance(base, dict) or not isinstance(over, dict):
            return over
        return {**base, **{key: merged(base.get(key), value) for key, value in over.items()}}

    assert errors(merged(VALUES, values_of(name))) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("nodes.replica", 3),
        ("nodes.replicas", 0),
        ("nodes.settings", {"max_inflight": 5}),
        ("nodes.settings", {"workers": 1}),
        ("routers.settings", {"shutdown_delay_ms": 5}),
        ("redis.url", "redis://:secret@host:6379"),
        ("checkpoint.url", "ftp://host/x"),
        ("checkpoint.path", "../other"),
        ("checkpoint.path", "/absolute"),
        ("image.node", {"repository": "x", "digest": "sha256:short"}),
        ("networkPolicy.readers", [{}]),
        ("applicationId", 'a"}'),
        ("applications", [{"id": "a"}]),
        ("applications", [{"id": "a/b", "checkpoint": "/c"}]),
        ("applications", [{"id": "a", "checkpoint": "ftp://host/x"}]),
        ("applications", [{"id": "a", "checkpoint": "/c", "max_in_flight": 0}]),
        ("routers.applications", "a,,b"),
        ("nodes.extraEnv", {"UNDERSTUDY_PORT": "1"}),
        ("nodes.extraVolumes", {"name": "v"}),
        ("serviceAccount.annotation", {}),
        ("monitoring.serviceMonitor.kind", "Probe"),
        ("tls.existingSecret", {"name": "s"}),
        ("tls.peers.nodes", {"secret": "s"}),
        ("tls.certManager.duration", "7d"),
    ],
)
def test_the_schema_refuses_what_is_misspelt_or_cannot_be(path: str, value: object) -> None:
    values = json.loads(json.dumps(VALUES))
    *parents, name = path.split(".")
    place = values
    for parent in parents:
        place = place[parent]
    place[name] = value
    assert errors(values) != []


def test_every_value_has_a_default_and_a_description() -> None:
    described = {path: each for path, each in leaves(SCHEMA) if path != ("global",)}
    assert [path for path, each in described.items() if not each.get("description")] == []
    for path in described:
        default_of(VALUES, path)


def test_the_table_in_the_readme_is_that_of_the_schema_and_the_defaults() -> None:
    text = README.read_text()
    assert text == with_table(text), "python -m tools.chart"


def test_templates_read_every_value_and_no_other() -> None:
    used = set(re.findall(r"\.Values((?:\.\w+)+)", TEMPLATES))
    known = {"." + ".".join(path) for path, _ in leaves(SCHEMA)} - {".global"}
    for name in used:
        assert any(value == name or value.startswith(f"{name}.") or name.startswith(f"{value}.") for value in known), (
            name
        )
    for value in known:
        # A template may take a whole branch, as `with .Values.spark` does; its parts are then read from that.
        parents = {value[:cut] for cut in range(len(value)) if value[cut] == "." and cut} & used
        last = value.rpartition(".")[2]
        assert value in used or (parents and re.search(rf"\.{last}\b", TEMPLATES)), value


@pytest.mark.parametrize("service", DEFINITIONS)
def test_settings_are_those_of_the_service_with_its_limits(service: str) -> None:
    properties = SCHEMA["definitions"][DEFINITIONS[service]]["properties"]
    model: type[BaseSettings] = SETTINGS[service]
    assert set(properties) == set(model.model_fields) - GIVEN_BY_THE_CHART[service]
    for name, schema in properties.items():
        field = model.model_fields[name]
        least = [limit.ge for limit in field.metadata if isinstance(limit, annotated_types.Ge)]
        most = [limit.le for limit in field.metadata if isinstance(limit, annotated_types.Le)]
        if schema.get("type") in ("integer", "number"):
            assert [schema[key] for key in ("minimum",) if key in schema] == least, name
            assert [schema[key] for key in ("maximum",) if key in schema] == most, name


def test_an_application_has_what_a_table_of_the_file_may_say() -> None:
    assert set(SCHEMA["definitions"]["application"]["properties"]) == set(ApplicationSpec.model_fields)


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = read_yaml(CHART / "Chart.yaml")
    version = re.search(r'(?m)^version = "(.+)"', (ROOT / "pyproject.toml").read_text())
    assert version is not None
    assert (chart["version"], chart["appVersion"]) == (version[1], version[1])


def test_alerts_and_dashboards_of_the_chart_are_the_files_that_promtool_and_tests_read() -> None:
    assert (CHART / "files" / "alerts.yml").resolve() == ROOT / "deploy" / "prometheus" / "alerts.yml"
    linked = {path.resolve() for path in (CHART / "files" / "dashboards").iterdir()}
    assert linked == set((ROOT / "deploy" / "grafana").glob("*.json"))
