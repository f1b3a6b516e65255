"""The chart's values: closed, documented, used, and as the code has them. None of this needs Helm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import annotated_types
import pytest
from pydantic_settings import BaseSettings
from tests.support.services.deploy_files import SETTINGS
from tests.support.services.helm_chart import SCHEMA
from tools.chart import README, with_table

from understudy_shared.fleet.applications_file import ApplicationSpec

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
        # Values of their own.
        *("applications", "checkpoint_root", "checkpoints", "forget_after_ms", "remove_idle"),
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


def test_every_object_of_the_schema_is_closed_or_maps_names_to_strings() -> None:
    open_ones = {
        path
        for path, each in objects(SCHEMA)
        if each.get("additionalProperties") is not False and each.get("additionalProperties") != {"type": "string"}
    }
    assert open_ones == {"/properties/global", "/definitions/kubernetes"}


def test_the_table_in_the_readme_is_that_of_the_schema_and_the_defaults() -> None:
    text = README.read_text()
    assert text == with_table(text), "python -m tools.chart"


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
