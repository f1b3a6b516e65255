"""The settings that how-tos show are ones that the chart and the services take."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft7Validator  # type: ignore[import-untyped]
from ruamel.yaml import YAML
from tests.support.documents.blocks import blocks_of
from tests.support.repository import ROOT

from understudy_shared.auth.credentials import parse_credentials

PAGES = ROOT / "docs" / "how-to"
CHART = ROOT / "deploy" / "helm" / "understudy"


def shown(page: str, language: str) -> list[str]:
    """The blocks of a page in one language."""
    return [block.text for block in blocks_of((PAGES / page).read_text()) if block.language == language]


def merged(values: Any, given: Any) -> Any:
    """The values of the chart with those that are given, as Helm puts them together."""
    if not (isinstance(values, dict) and isinstance(given, dict)):
        return given
    return values | {name: merged(values.get(name), value) for name, value in given.items()}


def test_the_values_that_a_page_shows_are_values_of_the_chart() -> None:
    texts = [(CHART / "values.yaml").read_text(), *shown("kubernetes.md", "yaml")]
    defaults, *given = (YAML(typ="safe").load(each) for each in texts)
    validator = Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))
    assert len(given) == 2
    assert [error.message for each in given for error in validator.iter_errors(merged(defaults, each))] == []


def test_the_credentials_that_a_page_shows_are_taken() -> None:
    (issuer,) = parse_credentials("".join(shown("sign-in.md", "toml")).encode()).issuers.values()
    assert issuer.roles.keys() == {"data-readers", "platform"}
    assert [grant.key_prefix_claims for grant in issuer.stored.grants] == [["tenant"]]
