"""Clients that generators make from the OpenAPI document: made without a warning, and they look keys up.

`openapi-python-client` is among the developers' packages. The others come with `make validators`; without them their
tests are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade_pairs import HandmadePairs
from tests.support.clients import openapi_generator, python_client, typescript
from tests.support.clients.conversation import UNDERSTOOD, VERSION, WORD
from tests.support.clients.tools import GENERATOR_JAR, NODE_MODULES
from tests.support.cluster.in_process import cluster
from tests.support.cluster.served_node import Served
from tests.support.spark.queries import wait_until

BARE = {
    "openapi": "3.1.0",
    "info": {"title": "bare", "version": "1"},
    "paths": {
        "/one": {
            "get": {
                "operationId": "one",
                # Python reserves this word, so the generator renames it in every document that has it, and warns.
                "parameters": [{"name": "from", "in": "query", "schema": {"type": "string"}}],
                "responses": {
                    "200": {
                        "description": "a text",
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/One"}}},
                    }
                },
            }
        }
    },
    "components": {"schemas": {"One": {"type": "object", "properties": {"text": {"type": "string"}}}}},
}


def answers(service: Served, target: str) -> bool:
    return service.get(target).status == 200


def needs(program: Path, name: str) -> None:
    if not program.exists():
        pytest.skip(f"no {name}: make validators")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, server: RedisServer) -> Iterator[Served]:
    """A router of two stores: its document has the calls of readers that nodes have, and more."""
    folder = tmp_path_factory.mktemp("asked")
    checkpoint = HandmadePairs(folder / "pairs").create().add(*range(1, VERSION + 1))
    server.flush()
    with cluster(checkpoint.path, folder, server.url, nodes=1) as known:
        found: Served = known.router
        for target in (f"op0/keys/{WORD}", f"op1/keys/{WORD}/7"):
            wait_until(partial(answers, found, f"/v1/stores/{target}?max_lag=0"), what="an answer")
        yield found


@pytest.fixture(scope="module")
def said_of_any(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The warnings of openapi-generator for any document of OpenAPI 3.1 that has a parameter `from`."""
    needs(GENERATOR_JAR, "openapi-generator")
    folder = tmp_path_factory.mktemp("bare")
    (folder / "bare.json").write_text(json.dumps(BARE))
    return openapi_generator.generated(folder / "bare.json", folder, "bare")


@pytest.fixture
def document(service: Served, tmp_path: Path) -> Path:
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(service.get("/openapi.json").body))
    return path


@pytest.mark.full
def test_openapi_python_client_makes_a_client_that_looks_keys_up(
    service: Served, document: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = document.parent / f"understudy_client_{service.port}"
    assert python_client.generated(document, package) == []
    monkeypatch.syspath_prepend(document.parent)
    assert python_client.asked(package.name, f"http://127.0.0.1:{service.port}") == UNDERSTOOD


@pytest.mark.full
def test_openapi_generator_makes_a_client_that_looks_keys_up(
    service: Served, document: Path, said_of_any: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package, folder = f"understudy_generated_{service.port}", document.parent / "generated"
    assert openapi_generator.generated(document, folder, package) <= said_of_any
    monkeypatch.syspath_prepend(folder)
    assert openapi_generator.asked(package, f"http://127.0.0.1:{service.port}") == UNDERSTOOD


@pytest.mark.full
def test_openapi_typescript_makes_types_by_which_a_program_looks_keys_up(service: Served, document: Path) -> None:
    needs(NODE_MODULES / ".bin" / "openapi-typescript", "openapi-typescript")
    folder = document.parent / "program"
    assert typescript.generated(document, folder) == ""
    assert typescript.asked(folder, f"http://127.0.0.1:{service.port}") == UNDERSTOOD
