"""Validators that others wrote, over every set of values: each is skipped where `make validators` could not bring it.

What checkov finds and we mean is in deploy/checkov.yaml, with the reason. A finding that is gone has to leave it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.repository import ROOT
from tests.support.services.helm_chart import NEWEST, OLDEST, SETS, needs_helm, read_yaml, rendered
from tools.chart import PYTHON

pytestmark = pytest.mark.full

VALIDATORS = ROOT / ".cache" / "validators" / "bin"
OTHERS = "Certificate,HTTPRoute,PodMonitor,ServiceMonitor,PrometheusRule,ScaledObject,SparkApplication"
"""Kinds that are not Kubernetes' own; tests of the chart look at them."""
LIMIT_S = 600
VERSIONS = [f"1.{minor}" for minor in range(int(OLDEST[2:]), int(NEWEST[2:]) + 1)]


def run(tool: str, *arguments: str) -> str:
    """What a validator says on its standard output; skips the test where it is not."""
    program = VALIDATORS / tool
    if not program.exists():
        pytest.skip(f"no {tool}: make validators")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of manifests for each set of values."""
    needs_helm()
    made = tmp_path_factory.mktemp("manifests")
    for name in ["", *SETS]:
        (made / f"{name or 'default'}.yaml").write_text(rendered(name))
    return made


def schemas(version: str, place: Path) -> str:
    """Where kubeconform finds the strict schemas of a version: kubernetes-validate's, without their addresses."""
    strict = f"kubernetes_validate/*/v{version}.0-local-strict"
    source = next(PYTHON.parent.parent.glob(f"lib/python3*/site-packages/{strict}"))
    for path in [source / "_definitions.json", *source.glob("*-v[0-9]*.json")]:
        schema = json.loads(path.read_text().replace("/api/_definitions.json", "_definitions.json"))
        del schema["$id"]
        (place / path.name).write_text(json.dumps(schema))
    return f"{place}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"


def conforms(manifests: Path, version: str, place: Path) -> list[str]:
    options = ("-strict", "-summary", "-output", "json", "-skip", OTHERS, "-kubernetes-version", f"{version}.0")
    said = json.loads(run("kubeconform", *options, "-schema-location", schemas(version, place), str(manifests)))
    wrong = [f"{each['kind']} {each['name']}: {each['msg']}" for each in said["resources"] or []]
    assert wrong or said["summary"]["valid"] > 0
    return wrong


@pytest.mark.parametrize("version", VERSIONS)
def test_kubeconform_finds_nothing_wrong(folder: Path, version: str, tmp_path: Path) -> None:
    assert conforms(folder, version, tmp_path) == []


def checkov(place: Path) -> set[str]:
    """Checks of checkov, by number, that something does not pass."""
    options = ("--framework", "kubernetes", "--compact", "--quiet", "--skip-download", "--output", "json")
    said: Any = json.loads(run("checkov", "--directory", str(place), *options))
    return {each["check_id"] for each in said["results"]["failed_checks"]}


def test_checkov_finds_what_is_meant_and_nothing_else(folder: Path) -> None:
    meant = read_yaml(ROOT / "deploy" / "checkov.yaml")["skip-check"]
    assert checkov(folder) == set(meant)
