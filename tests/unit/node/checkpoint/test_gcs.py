"""Where a checkpoint in Google Cloud Storage is and who reads it, by URL, environment and files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from understudy_node.checkpoint.gcs import GCS, gcs_access
from understudy_node.checkpoint.store_access import StoreAccess
from understudy_shared.base.errors import NotACheckpointError, SettingsError

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


def test_a_file_that_is_named_comes_before_that_of_gcloud() -> None:
    both = {NAMED: USER, DEFAULT: USER}
    assert access({"GOOGLE_APPLICATION_CREDENTIALS": str(NAMED)}, both).config == {
        "application_credentials": str(NAMED)
    }
    assert access({}, both).config == {"application_credentials": str(DEFAULT)}
    moved = Path("/etc/gcloud/application_default_credentials.json")
    assert access({"CLOUDSDK_CONFIG": "/etc/gcloud"}, {moved: USER}).config == {"application_credentials": str(moved)}


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
