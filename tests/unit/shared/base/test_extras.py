"""The command that an error names for an extra: from where this package came, with the aligned source beside it."""

from __future__ import annotations

import json
from importlib import metadata
from types import SimpleNamespace

import pytest

from understudy_shared.base.extras import install_fix, requirement

WHEEL = "file:///my%20dist/understudy_spark-0.1.0-py3-none-any.whl"


def come_from(monkeypatch: pytest.MonkeyPatch, origin: str | None) -> None:
    text = None if origin is None else json.dumps({"url": origin})
    installed = SimpleNamespace(version="0.1.0", read_text=lambda _: text)
    monkeypatch.setattr(metadata, "distribution", lambda _: installed)


@pytest.mark.parametrize(
    ("origin", "extras", "fix"),
    [
        (None, "node", "pip install 'understudy-spark[node]'"),
        ("file:///clone", "all", "pip install 'understudy-spark[all] @ file:///clone'"),
        (WHEEL, "node,s3", f"pip install 'understudy-spark[node,s3] @ {WHEEL}'"),
        (WHEEL, "pipeline", f"pip install --find-links '/my dist' 'understudy-spark[pipeline] @ {WHEEL}'"),
        (WHEEL, "spark,all", f"pip install --find-links '/my dist' 'understudy-spark[spark,all] @ {WHEEL}'"),
    ],
)
def test_an_extra_is_installed_from_where_the_package_came_from(
    monkeypatch: pytest.MonkeyPatch, origin: str | None, extras: str, fix: str
) -> None:
    come_from(monkeypatch, origin)
    assert install_fix(extras) == fix


def test_a_command_that_is_started_again_gets_the_same_version(monkeypatch: pytest.MonkeyPatch) -> None:
    come_from(monkeypatch, None)
    assert requirement("node", exactly=True) == "understudy-spark[node]==0.1.0"
