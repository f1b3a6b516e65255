"""The OpenAPI documents in themselves: references lead somewhere, schemas are schemas, examples and commands fit."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from tests.support.services.accepted_bounds import in_a_body
from tests.support.services.openapi import described_answers, resolved, strict, validator

from understudy_shared.http.openapi.document import SOURCE, Service, document, references
from understudy_shared.http.openapi.page import HEADERS, page
from understudy_shared.reads.bound_parsing import parse_bound
from understudy_shared.reads.bounds import MAX_LIMIT, BadBoundError

SERVICES: tuple[Service, ...] = ("serve", "node", "router")
DOCUMENTS: dict[str, Any] = {name: document(name) for name in SERVICES}
FLEETS: dict[str, Any] = {f"{name} of many": document(name, is_fleet=True) for name in SERVICES}
DOCUMENTS_OF_ALL = DOCUMENTS | FLEETS

of_each = pytest.mark.parametrize("name", DOCUMENTS_OF_ALL)


def operations() -> list[Any]:
    return [
        pytest.param(name, method, path, operation, id=f"{name}-{operation['operationId']}")
        for name, found in DOCUMENTS_OF_ALL.items()
        if name not in {"serve of many", "node of many"}  # a fleet of routers has all their calls but one
        for path, methods in found["paths"].items()
        for method, operation in methods.items()
    ]


of_each_operation = pytest.mark.parametrize(("name", "method", "path", "operation"), operations())


def test_every_operation_says_which_services_have_it_and_is_in_their_documents_alone() -> None:
    for path, methods in json.loads(SOURCE.read_bytes())["paths"].items():
        for method, operation in methods.items():
            documents = FLEETS if operation.get("x-fleet") == "only" else DOCUMENTS
            having = {name for name, found in documents.items() if method in found["paths"].get(path, {})}
            assert set(operation["x-services"]) == {name.removesuffix(" of many") for name in having} != set()


def test_a_fleet_has_each_call_of_an_application_below_it_and_few_for_all() -> None:
    for name in SERVICES:
        alone, fleet = DOCUMENTS[name]["paths"], FLEETS[f"{name} of many"]["paths"]
        below = {path: re.sub("^((/admin)?/v1)/", r"\1/applications/{application}/", path) for path in alone}
        assert {path for path in below.values() if path not in fleet} == set()
        for path in alone.keys() & fleet.keys():
            assert path == below[path] or {call["operationId"] for call in fleet[path].values()} <= OF_ALL
        get = fleet["/v1/applications/{application}/stores/{store}/keys/{key}"]["get"]
        assert "(`unknown-application`)" in get["responses"]["404"]["description"]
        assert (
            "#/components/responses/409-ambiguous-store"
            in fleet["/v1/stores/{store}"]["get"]["responses"]["409"].values()
        )


OF_ALL = {"list_all_stores", "find_store", "drain_all", "drain_node_of_all", "is_safe_for_all"}


@of_each
def test_no_mark_of_the_source_is_served(name: str) -> None:
    assert set(re.findall(r'"(x-[\w-]+)":', json.dumps(DOCUMENTS_OF_ALL[name]))) == {"x-codeSamples"}


def test_only_a_guarded_service_asks_for_a_credential() -> None:
    guarded = document("node", is_guarded=True)
    assert guarded["security"] == [{"key": []}]
    assert guarded["components"].pop("securitySchemes").keys() == {"key"}
    assert {name: part for name, part in guarded.items() if name != "security"} == DOCUMENTS["node"]


@of_each
def test_every_reference_leads_to_a_component_and_every_component_is_referred_to(name: str) -> None:
    found = DOCUMENTS_OF_ALL[name]
    there = {f"{kind}/{each}" for kind, parts in found["components"].items() for each in parts}
    assert set(references(found)) == there


@of_each
def test_every_schema_is_one(name: str) -> None:
    found = DOCUMENTS_OF_ALL[name]
    for schema in found["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    for parameter in found["components"]["parameters"].values():
        Draft202012Validator.check_schema(parameter.get("schema", {}))


@of_each
def test_every_example_fits_its_schema_member_by_member(name: str) -> None:
    found = strict(DOCUMENTS_OF_ALL[name])
    examples = list(described_answers(found))
    assert len(examples) > 10
    for where, schema, example in examples:
        errors = [error.message for error in validator(found, schema).iter_errors(example)]
        assert errors == [], where


@of_each
def test_operations_have_names_of_their_own_and_tags_that_are_described(name: str) -> None:
    found = DOCUMENTS_OF_ALL[name]
    operations = [operation for methods in found["paths"].values() for operation in methods.values()]
    names = [operation["operationId"] for operation in operations]
    assert sorted(names) == sorted(set(names))
    assert {tag for operation in operations for tag in operation["tags"]} == {tag["name"] for tag in found["tags"]}


@of_each_operation
def test_each_command_is_of_its_call_and_sends_what_the_call_takes(
    name: str, method: str, path: str, operation: Any
) -> None:
    (sample,) = [each["source"] for each in operation["x-codeSamples"]]
    words = shlex.split(sample)
    (url,) = [urlsplit(word.replace("$url", "http://host")) for word in words if word.startswith("$url")]
    template = re.sub(r"{[^}]*}", "[^/]+", path)
    assert re.fullmatch(template, url.path), sample
    assert ("-X" in words or "-d" in words) == (method != "get")
    taken = {resolved(DOCUMENTS_OF_ALL[name], each)["name"] for each in operation.get("parameters", ())}
    assert {part.partition("=")[0] for part in url.query.split("&") if part} <= taken


@of_each_operation
def test_each_path_parameter_is_described_and_no_other(name: str, method: str, path: str, operation: Any) -> None:
    parameters = [resolved(DOCUMENTS_OF_ALL[name], each) for each in operation.get("parameters", ())]
    assert {each["name"] for each in parameters if each["in"] == "path"} == set(re.findall(r"{(\w+)}", path))


def test_a_call_that_a_service_does_not_have_is_left_out_with_its_schemas() -> None:
    found = DOCUMENTS["serve"]
    assert "/admin/v1/drain" not in found["paths"]
    assert {"Drain", "LagPage", "Overview"} & found["components"]["schemas"].keys() == set()
    assert {"/livez", "/v1/stores/{store}/lookup", "/docs"} <= found["paths"].keys()


BODY_BOUNDS = [
    *("max_lag", "max_staleness_ms", "require_active", "unknown_lag", "wait_ms"),
    *("limit", "include_expired"),
]
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 40_000)
    | st.sampled_from([MAX_LIMIT, MAX_LIMIT + 1, 2**63])
    | st.sampled_from(
        ["none", "serve", "refuse", "true", "TRUE", "0", "5", "30000", "30001", "1000", "1001", "-1", "1.5", "", "x"]
    )
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(0, 40_000).map(float)
    | st.lists(st.none(), max_size=1)
)


@given(st.sampled_from(BODY_BOUNDS), VALUES)
def test_the_bounds_of_a_body_are_accepted_as_the_document_says_and_as_texts(bound: str, value: Any) -> None:
    """What is of another type and no such text is refused."""
    found = DOCUMENTS["node"]
    described = found["components"]["schemas"]["Bounds"]["properties"][bound]
    fits = validator(found, in_a_body(bound, described)).is_valid(value)
    try:
        parse_bound({bound: None if value == "none" else value})
    except BadBoundError:
        assert not fits
    else:
        assert fits


# ---- the page


class Page(HTMLParser):
    """Elements, attributes and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.style = ""
        self.words = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += attrs
        if tag not in {"meta", "link"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["style"]:
            self.style += data
        else:
            self.words += data


@of_each
def test_the_page_shows_every_call_parameter_and_schema(name: str) -> None:
    found = DOCUMENTS_OF_ALL[name]
    shown = Page(page(found, "http://host:1"))
    assert shown.open == []
    for path, methods in found["paths"].items():
        assert path in shown.words
        for operation in methods.values():
            assert operation["x-codeSamples"][0]["source"] in shown.words
            assert ("id", operation["operationId"]) in shown.attributes
    for parameter in found["components"]["parameters"].values():
        assert parameter["name"] in shown.words
    ids = {value for attribute, value in shown.attributes if attribute == "id"}
    assert {f"schema-{schema}" for schema in found["components"]["schemas"]} <= ids
    links = [value or "" for attribute, value in shown.attributes if attribute == "href"]
    assert {link[1:] for link in links if link.startswith("#")} <= ids
    assert {link for link in links if not link.startswith("#")} == {"/openapi.json", "data:,"}
    assert "url=http://host:1" in shown.words


@of_each
def test_the_page_loads_and_runs_nothing_and_its_policy_lets_only_its_own_style_through(name: str) -> None:
    shown = Page(page(DOCUMENTS_OF_ALL[name], "http://host:1"))
    assert {"script", "img", "iframe", "form", "object"} & set(shown.elements) == set()
    assert {attribute for attribute, _ in shown.attributes} & {"src", "style", "onclick", "srcset", "action"} == set()
    assert "@import" not in shown.style
    assert "url(" not in shown.style
    digest = base64.b64encode(hashlib.sha256(shown.style.encode()).digest()).decode()
    policy = HEADERS["content-security-policy"]
    assert f"style-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


@given(st.text() | st.text("`*<>&\"'\n/ab"))
def test_no_text_of_the_document_becomes_markup(text: str) -> None:
    schema = {"type": "object", "description": text, "properties": {text: {"enum": [text], "description": text}}}
    operation = {
        "operationId": "one",
        "tags": [text],
        "summary": text,
        "description": text,
        "responses": {"200": {"description": text, "content": {text: {"schema": {}, "example": text}}}},
        "x-codeSamples": [{"source": text}],
    }
    found = {
        "info": {"title": text, "version": text, "description": text},
        "tags": [{"name": text, "description": text}],
        "paths": {text: {"get": operation}},
        "components": {"schemas": {"One": schema}},
    }
    plain = {**found, "paths": {"x": {"get": operation}}}
    shown, calm = Page(page(found, text)), Page(page(plain, text))
    assert shown.open == []
    assert shown.elements == calm.elements
    assert set(shown.elements) <= TAGS


TAGS = set(
    re.findall(
        r"\w+",
        "html head meta link title style body div nav main p a ul li span code pre h1 h2 h3 h4 small section table "
        "thead tbody tr th td details summary b i",
    )
)
