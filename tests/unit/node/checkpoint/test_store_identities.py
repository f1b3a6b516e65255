"""What a pod or a machine is given in place of keys: the token reaches the store, is renewed, and is never said."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.object_store.identities import CONTENT, SECRET, Identities, identities
from tests.support.spark.queries import wait_until

from understudy_node.checkpoint import gcs
from understudy_node.checkpoint.azure import Azure
from understudy_node.checkpoint.gcs import GCS
from understudy_node.checkpoint.object_store import ObjectStoreFiles, StoreFolder
from understudy_node.checkpoint.s3 import S3
from understudy_node.checkpoint.store_files import StoreLimits
from understudy_shared.base.errors import CheckpointError

PLACES: dict[str, Callable[[], StoreFolder]] = {
    "instance": lambda: S3("s3://bucket/x"),
    "container": lambda: S3("s3://bucket/x"),
    "web": lambda: S3("s3://bucket/x"),
    "managed": lambda: Azure("abfss://box@team.dfs.core.windows.net/x"),
    "workload": lambda: Azure("abfss://box@team.dfs.core.windows.net/x"),
    "principal": lambda: Azure("abfss://box@team.dfs.core.windows.net/x"),
    "metadata": lambda: GCS("gs://bucket/x"),
    "federation": lambda: GCS("gs://bucket/x"),
    "impersonation": lambda: GCS("gs://bucket/x"),
}
ENDS_SOON_S = 100
"""Less than what each library wants a token to have left."""

NONE_FOUND = "no credentials were found"
"""What is said of a machine's own service: it may have no identity to give."""

each_identity = pytest.mark.parametrize("identity", PLACES)


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Identities]:
    with identities(tmp_path) as found:
        yield found


@pytest.fixture
def files(provider: Identities, identity: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ObjectStoreFiles:
    for name in os.environ:
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    for name, value in {"HOME": str(tmp_path), **provider.environment(identity)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(gcs, "IDENTITY_TIMEOUT_S", 0.5)
    limits = StoreLimits(stalled_ms=500, renew_ms=0, max_tries=1)
    return ObjectStoreFiles(PLACES[identity](), limits=limits)


@each_identity
def test_the_token_of_an_identity_reaches_the_store_and_is_kept(files: ObjectStoreFiles, provider: Identities) -> None:
    assert [files.read("metadata") for _ in range(3)] == [CONTENT] * 3
    assert provider.shown == [f"{SECRET}-token-1"] * 3


@each_identity
def test_a_token_is_renewed_before_it_ends(files: ObjectStoreFiles, provider: Identities) -> None:
    provider.lasts_s = ENDS_SOON_S
    files.read("metadata")
    wait_until(lambda: files.read("metadata") == CONTENT and provider.asked > 1, what="another token")
    provider.lasts_s = 3_600
    wait_until(lambda: files.read("metadata") == CONTENT and provider.shown[-1] != provider.shown[0], what="its use")


@each_identity
@pytest.mark.parametrize(
    ("status", "reasons"),
    [
        pytest.param(500, {"the provider of identities failed (500)", NONE_FOUND}, id="fails"),
        pytest.param(400, {"the provider of identities refuses the credentials (400)", NONE_FOUND}, id="refuses"),
        pytest.param(
            0, {"the provider of identities did not answer in time", NONE_FOUND}, id="hangs", marks=pytest.mark.full
        ),
    ],
)
def test_a_provider_that_gives_no_token_is_named_and_no_secret_is_said(
    files: ObjectStoreFiles, provider: Identities, status: int, reasons: set[str]
) -> None:
    if status:
        provider.status = status
    else:
        provider.answers.clear()
    with pytest.raises(CheckpointError) as error:
        files.read("metadata")
    assert any(reason in error.value.what for reason in reasons), error.value.what
    said = "".join(traceback.format_exception(error.value)) + f"{error.value.__context__!r} {files!r}"
    assert SECRET not in said
    assert error.value.fix


@pytest.mark.parametrize("identity", ["federation"])
@pytest.mark.parametrize("fault", ["hangs", "fails", "has no proof"])
def test_requests_go_on_while_a_token_that_is_still_valid_cannot_be_renewed(
    files: ObjectStoreFiles, provider: Identities, fault: str
) -> None:
    provider.lasts_s = ENDS_SOON_S
    files.read("metadata")
    proof = provider.proof.read_text()
    if fault == "hangs":
        provider.answers.clear()
    elif fault == "fails":
        provider.status = 500
    else:
        provider.proof.unlink()
    for _ in range(5):
        assert files.read("metadata") == CONTENT
    assert set(provider.shown) == {f"{SECRET}-token-1"}
    provider.status = 200
    provider.proof.write_text(proof)
    provider.answers.set()
    wait_until(lambda: files.read("metadata") == CONTENT and len(set(provider.shown)) > 1, what="another token")


@pytest.mark.parametrize("identity", ["federation"])
def test_what_proves_an_identity_and_cannot_be_read_is_named(files: ObjectStoreFiles, provider: Identities) -> None:
    provider.proof.unlink()
    with pytest.raises(CheckpointError, match="what proves the identity to the provider of identities cannot be read"):
        files.read("metadata")
