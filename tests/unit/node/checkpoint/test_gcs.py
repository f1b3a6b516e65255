"""Where a checkpoint in Google Cloud Storage is and who reads it, by URL, environment and files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_node.checkpoint.gcs import GCS, gcs_access
from understudy_node.checkpoint.object_store import ObjectStoreFiles, StoreAccess
from understudy_node.checkpoint.opening import open_checkpoint_files
from understudy_node.checkpoint.store_files import StoreLimits
from understudy_shared.base.errors import CheckpointError, NotACheckpointError, SettingsError

DEFAULT = Path("/home/u/.config/gcloud/application_default_credentials.json")
NAMED = Path("/run/key.json")
USER = json.dumps({"type": "authorized_user", "client_id": "c", "client_secret": "hush", "refresh_token": "hush"})


def access(environ: Mapping[str, str], files: Mapping[Path, str] | None = None) -> StoreAccess:
    return gcs_access({"HOME": "/home/u", **environ}, (files or {}).get)


@pytest.mark.parametrize("scheme", ["gs", "gcs"])
def test_a_location_is_a_bucket_and_a_prefix(scheme: str) -> None:
    found = GCS(f"{scheme}://my-bucket_1.example/a b/c=d%20e/")
    assert (found.bucket, found.prefix) == ("my-bucket_1.example", "a b/c=d%20e")
    assert found.url == f"{scheme}://my-bucket_1.example/a b/c=d%20e"
    assert GCS(f"{scheme}://my-bucket").prefix == ""


@pytest.mark.parametrize("url", ["gs://", "gs:///x", "gs://key:hush@bucket/x", "gs://b?x=hush", "gs://bucket/x?t=hush"])
def test_what_is_no_bucket_is_refused_and_its_secret_not_shown(url: str) -> None:
    with pytest.raises(NotACheckpointError, match="not a location in Google Cloud Storage") as error:
        GCS(url)
    assert "hush" not in str(error.value)


@given(st.text(max_size=40))
def test_any_text_is_a_location_or_refused(text: str) -> None:
    try:
        found = GCS(f"gs://{text}")
    except NotACheckpointError:
        return
    assert text.startswith(found.bucket)


@pytest.mark.parametrize(
    "variable", ["GOOGLE_BEARER_TOKEN", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_SKIP_SIGNATURE"]
)
def test_the_environment_comes_first_and_the_library_reads_it(variable: str) -> None:
    assert access({variable: "true"}, {DEFAULT: USER}).config == {}


def test_a_file_that_is_named_comes_before_that_of_gcloud() -> None:
    both = {NAMED: USER, DEFAULT: USER}
    assert access({"GOOGLE_APPLICATION_CREDENTIALS": str(NAMED)}, both).config == {
        "application_credentials": str(NAMED)
    }
    assert access({}, both).config == {"application_credentials": str(DEFAULT)}
    moved = Path("/etc/gcloud/application_default_credentials.json")
    assert access({"CLOUDSDK_CONFIG": "/etc/gcloud"}, {moved: USER}).config == {"application_credentials": str(moved)}


def test_without_a_file_the_service_account_of_the_machine_is_left_to_the_library() -> None:
    assert access({}).config == {}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (None, "cannot be read"),
        ("{hush", "no credentials of Google"),
        ("[]", "no credentials of Google"),
        ('{"type": "Hush 1"}', "no credentials of Google"),
        ('{"type": "external_account", "audience": "hush"}', "type external_account are not understood"),
        ('{"type": "impersonated_service_account", "source_credentials": "hush"}', "account are not understood"),
        ('{"type": "gdch_service_account", "name": "hush"}', "type gdch_service_account are not supported"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_without_its_content(text: str | None, match: str) -> None:
    files = {} if text is None else {NAMED: text}
    with pytest.raises(SettingsError, match=match) as error:
        access({"GOOGLE_APPLICATION_CREDENTIALS": str(NAMED)}, files)
    assert error.value.where == str(NAMED)
    assert "hush" not in str(error.value).lower()


def test_an_endpoint_without_tls_is_allowed_by_naming_it() -> None:
    assert access({"GOOGLE_BASE_URL": "http://127.0.0.1:4443"}).allow_http
    assert not access({"GOOGLE_BASE_URL": "https://127.0.0.1:4443"}).allow_http
    assert not access({}).allow_http


def test_a_url_of_either_scheme_is_read_by_this_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "hush")
    for url in ("gs://bucket/x", "gcs://bucket/x"):
        files = open_checkpoint_files(url)
        assert isinstance(files, ObjectStoreFiles)
        assert files.url == url
        assert "hush" not in repr(files)


def test_without_credentials_the_error_says_where_they_were_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"):
        monkeypatch.setenv(name, "127.0.0.1:9")
    files = ObjectStoreFiles(GCS("gs://bucket/x", lambda: access({})), limits=StoreLimits(renew_ms=0))
    with pytest.raises(CheckpointError) as error:
        files.list("commits")
    assert "none were found, looked in the environment (GOOGLE_BEARER_TOKEN, " in error.value.what
    assert f"{DEFAULT}, the service account of this pod or machine (metadata service)" in error.value.what
    assert "Set GOOGLE_APPLICATION_CREDENTIALS" in error.value.fix
