"""The OpenAPI documents in themselves: references lead somewhere, schemas are schemas, examples and commands fit."""

from __future__ import annotations

import re
import shlex
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.services.openapi import described_answers, resolved, strict, validator

from understudy_shared.http.openapi.document import Service, document, page, references

SERVICES: tuple[Service, ...] = ("serve", "node", "router")
DOCUMENTS: dict[str, Any] = {name: document(name) for name in SERVICES}
FLEETS: dict[str, Any] = {f"{name} of many": document(name, is_fleet=True) for name in SERVICES}
DOCUMENTS_OF_ALL = DOCUMENTS | FLEETS

of_each = pytest.mark.parametrize("name", DOCUMENTS_OF_ALL)


def operations() -> list[tuple[str, str, str, Any]]:
    return [
        (name, method, path, operation)
        for name, found in DOCUMENTS_OF_ALL.items()
        if name not in {"serve of many", "node of many"}  # a fleet of routers has all their calls but one
        for path, methods in found["paths"].items()
        for method, operation in methods.items()
    ]


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
def test_every_reference_leads_to_a_component_and_every_component_is_referred_to(name: str) -> None:
    found = DOCUMENTS_OF_ALL[name]
    there = {f"{kind}/{each}" for kind, parts in found["components"].items() for each in parts}
    assert set(references(found)) == there


@of_each
def test_every_example_fits_its_schema_member_by_member(name: str) -> None:
    found = strict(DOCUMENTS_OF_ALL[name])
    examples = list(described_answers(found))
    assert len(examples) > 10
    for where, schema, example in examples:
        errors = [error.message for error in validator(found, schema).iter_errors(example)]
        assert errors == [], where


def test_each_command_is_of_its_call_and_sends_what_the_call_takes() -> None:
    for name, method, path, operation in operations():
        (sample,) = [each["source"] for each in operation["x-codeSamples"]]
        words = shlex.split(sample)
        (url,) = [urlsplit(word.replace("$url", "http://host")) for word in words if word.startswith("$url")]
        template = re.sub(r"{[^}]*}", "[^/]+", path)
        assert re.fullmatch(template, url.path), sample
        assert ("-X" in words or "-d" in words) == (method != "get"), sample
        taken = {resolved(DOCUMENTS_OF_ALL[name], each)["name"] for each in operation.get("parameters", ())}
        assert {part.partition("=")[0] for part in url.query.split("&") if part} <= taken, sample


# ---- the page


class Page(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        if tag not in {"meta", "link"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


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
