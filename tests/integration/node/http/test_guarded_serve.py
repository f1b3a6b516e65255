"""`understudy serve` with credentials, as its users meet it: refused, welcomed, let in, revoked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.services.command_line import Serving, ask, serving
from tests.support.services.guarded import Keys
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

LIMIT_S = 20.0


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return HandmadeCheckpoint(tmp_path_factory.mktemp("guarded") / "counts").create().add(1).path


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    made = Keys(tmp_path / "credentials.toml")
    made.add("reader", "reader")
    return made


@pytest.fixture
def served(checkpoint: Path, keys: Keys, tmp_path: Path) -> Iterator[Serving]:
    with serving([str(checkpoint), "--credentials-file", str(keys.path)], tmp_path / "served") as running:
        yield running


def test_a_key_lets_in_until_it_is_revoked_and_without_one_nobody_learns_anything(served: Serving, keys: Keys) -> None:
    url = served.url
    assert "op0" not in served.output
    variables = {"UNDERSTUDY_URL": url}
    nobody = ask("get", "op0", WORDS[0], variables=variables)
    assert nobody.returncode == 3
    assert "UNDERSTUDY_API_KEY" in nobody.stderr
    variables |= {"UNDERSTUDY_API_KEY": keys["reader"]}
    assert ask("get", "op0", WORDS[0], variables=variables).returncode == 0
    assert ask("lag", variables=variables).returncode == 3
    keys.revoke("reader")
    wait_until(lambda: ask("stores", variables=variables).returncode == 3, what="the key's end", limit_s=LIMIT_S)
    assert keys["reader"] not in served.errors + served.output
    assert "Traceback" not in served.errors
