"""`understudy doctor` on a checkpoint in each kind of object store: what it checks, and what it says to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.support.object_store.azurite import AzureServer, sas
from tests.support.object_store.bucket import Bucket, StoreServer
from tests.support.object_store.faulty_proxy import FaultyProxy, Refuse
from tests.support.object_store.uploaded import Uploaded

from understudy_node.doctor import clock_check, commit_check, examine, list_check

ALL = ["clock", "credentials", "list", "read", "lineage", "commit"]

Check = dict[str, str]


@pytest.fixture
def bucket(store: StoreServer) -> Bucket:
    return store.new_bucket()


@pytest.fixture
def checks(store: StoreServer, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Check]]:
    """The checks of a path in the bucket, with what the environment has beside the store's own variables."""

    def check(path: str, *, endpoint: str | None = None, **variables: str) -> list[Check]:
        for name, value in (store.environment(endpoint) | variables).items():
            if value:
                monkeypatch.setenv(name, value)
            else:
                monkeypatch.delenv(name, raising=False)
        found: list[Check] = examine(store.url(bucket.name, path))["checks"]
        return found

    return check


def test_a_checkpoint_that_can_be_followed_is_ok_in_each_check(
    bucket: Bucket, checks: Callable[..., list[Check]], tmp_path: Path
) -> None:
    Uploaded(bucket, tmp_path / "checkpoint").add(1, 2)
    found = checks("ckpt")
    assert [each["check"] for each in found] == ALL
    assert {each["state"] for each in found} == {"ok"}, found
    assert "version 2 was committed" in found[-1]["what"]


@pytest.mark.parametrize(
    ("status", "check", "words"),
    [(403, "credentials", "refuses the credentials"), (404, "store", "no such"), (503, "store", "fewer requests")],
)
def test_a_store_that_refuses_fails_with_what_to_do(  # noqa: PLR0917  # fixtures
    bucket: Bucket, checks: Callable[..., list[Check]], store_proxy: FaultyProxy, status: int, check: str, words: str
) -> None:
    bucket.put("ckpt/metadata", b"{}")
    store_proxy.fault = lambda _: Refuse(status, "Refused")
    last = checks("ckpt", endpoint=store_proxy.endpoint)[-1]
    assert (last["check"], last["state"]) == (check, "fail")
    assert words in last["what"]
    assert last["fix"]


@pytest.mark.parametrize("store", ["azure"], indirect=True)
def test_a_signature_that_may_not_read_or_has_expired_is_told_apart_from_one_that_may(
    azure: AzureServer, bucket: Bucket, checks: Callable[..., list[Check]], tmp_path: Path
) -> None:
    Uploaded(bucket, tmp_path / "checkpoint").add(1)
    for signature, check in (
        (sas("rl"), "commit"),
        (sas("l"), "read"),
        (sas("r"), "credentials"),
        (sas("rl", end="2020-01-01T00:00:00Z"), "credentials"),
    ):
        found = checks("ckpt", AZURE_STORAGE_ACCOUNT_KEY="", AZURE_STORAGE_SAS_TOKEN=signature)
        assert (found[-1]["check"], found[-1]["state"]) == (check, "ok" if check == "commit" else "fail")
        assert quote(signature.partition("sig=")[2]) not in str(found)


@pytest.mark.parametrize(
    ("check", "state"),
    [
        (clock_check(20.0, "h"), "warn"),
        (clock_check(1_000.0, "h"), "fail"),
        (list_check(None, 20.0), "fail"),
        (commit_check(3, 10.0), "ok"),
        (commit_check(3, 1e5), "warn"),
    ],
)
def test_each_measure_has_its_limits_and_an_advice_beyond_them(check: Check, state: str) -> None:
    assert check["state"] == state
    assert bool(check["fix"]) is (state != "ok")
