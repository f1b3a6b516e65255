"""Where a checkpoint in S3 is and who reads it, by URL, environment and files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_node.checkpoint.object_store import ObjectStoreFiles, StoreAccess
from understudy_node.checkpoint.opening import open_checkpoint_files
from understudy_node.checkpoint.s3 import S3, s3_access
from understudy_node.checkpoint.store_files import StoreLimits
from understudy_shared.base.errors import CheckpointError, NotACheckpointError, SettingsError

HOME = {"HOME": "/home/u"}
CREDENTIALS = Path("/home/u/.aws/credentials")
CONFIG = Path("/home/u/.aws/config")
PROFILES = """
[default]
aws_access_key_id = AKDEFAULT
aws_secret_access_key = default-secret
[team]
aws_access_key_id=AKTEAM
aws_secret_access_key=team%secret
aws_session_token=team-token
[half]
aws_access_key_id=AKHALF
[signed-in]
sso_session = corp
"""


def access(environ: Mapping[str, str], files: Mapping[Path, str] | None = None) -> StoreAccess:
    return s3_access({**HOME, **environ}, (files or {}).get)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_a_location_is_a_bucket_and_a_prefix(scheme: str) -> None:
    found = S3(f"{scheme}://my-bucket/a b/c=d%20e/")
    assert (found.bucket, found.prefix, found.url) == ("my-bucket", "a b/c=d%20e", f"{scheme}://my-bucket/a b/c=d%20e")
    assert S3(f"{scheme}://my-bucket").prefix == ""


@pytest.mark.parametrize("url", ["s3://", "s3:///x", "s3://key:hush@bucket/x", "s3://KEY@bucket/x", "s3://b?x=hush"])
def test_what_is_no_bucket_is_refused_and_its_secret_not_shown(url: str) -> None:
    with pytest.raises(NotACheckpointError, match="not a location in S3") as error:
        S3(url)
    assert "hush" not in str(error.value)


@given(st.text(max_size=40))
def test_any_text_is_a_location_or_refused(text: str) -> None:
    try:
        found = S3(f"s3://{text}")
    except NotACheckpointError:
        return
    assert text.startswith(found.bucket)


def test_the_environment_comes_first_and_the_library_reads_it() -> None:
    found = access({"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}, {CREDENTIALS: PROFILES})
    assert found.config == {}


@pytest.mark.parametrize("lone", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_one_key_without_the_other_is_refused(lone: str) -> None:
    with pytest.raises(SettingsError, match="is not set"):
        access({lone: "hush"})


def test_a_web_identity_comes_before_files() -> None:
    assert access({"AWS_WEB_IDENTITY_TOKEN_FILE": "/token"}, {CREDENTIALS: PROFILES}).config == {}


def test_profiles_of_the_credentials_file_are_read() -> None:
    found = access({}, {CREDENTIALS: PROFILES})
    assert dict(found.config) == {"access_key_id": "AKDEFAULT", "secret_access_key": "default-secret"}
    found = access({"AWS_PROFILE": "team"}, {CREDENTIALS: PROFILES})
    assert dict(found.config) == {
        "access_key_id": "AKTEAM",
        "secret_access_key": "team%secret",
        "session_token": "team-token",
    }
    assert "secret" not in repr(found)
    elsewhere = access({"AWS_SHARED_CREDENTIALS_FILE": "/run/keys"}, {Path("/run/keys"): PROFILES})
    assert elsewhere.config["access_key_id"] == "AKDEFAULT"


def test_the_config_file_gives_region_endpoint_and_keys_of_named_profiles() -> None:
    config = "[default]\nregion=eu-west-1\n[profile team]\nregion=eu-north-1\nendpoint_url=http://store:9000\n"
    assert access({}, {CONFIG: config}).config == {"region": "eu-west-1"}
    found = access({"AWS_PROFILE": "team"}, {CONFIG: config, CREDENTIALS: PROFILES})
    assert found.config["region"] == "eu-north-1"
    assert found.config["endpoint"] == "http://store:9000"
    assert found.allow_http
    stated = access({"AWS_REGION": "us-east-2", "AWS_ENDPOINT_URL": "https://s3.local"}, {CONFIG: config})
    assert stated.config == {}
    assert not stated.allow_http


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"])
def test_an_endpoint_without_tls_is_allowed_by_naming_it(variable: str) -> None:
    assert access({variable: "http://127.0.0.1:9000"}).allow_http
    assert not access({variable: "https://127.0.0.1:9000"}).allow_http


@pytest.mark.parametrize(
    ("profile", "match"),
    [("half", "lacks a key"), ("signed-in", "sso_session, which is not supported"), ("nobody", "no profile nobody")],
)
def test_a_profile_that_gives_no_keys_is_refused_by_name(profile: str, match: str) -> None:
    with pytest.raises(SettingsError, match=match) as error:
        access({"AWS_PROFILE": profile}, {CREDENTIALS: PROFILES})
    assert "secret" not in str(error.value)


def test_a_file_that_does_not_parse_is_named_without_its_lines() -> None:
    with pytest.raises(SettingsError, match="does not parse") as error:
        access({}, {CREDENTIALS: "aws_secret_access_key=hush\n"})
    assert "hush" not in str(error.value)
    assert error.value.where == str(CREDENTIALS)


def test_without_keys_the_role_of_the_machine_is_left_to_the_library() -> None:
    assert access({}).config == {}


def test_requests_that_are_not_signed_need_no_keys() -> None:
    assert access({"AWS_SKIP_SIGNATURE": "true"}, {CREDENTIALS: PROFILES}).config == {}


@pytest.mark.parametrize(
    ("url", "setting"), [("s3://bucket/a//b", "true"), ("s3://bucket/../b", "true"), ("s3://bucket/b", "hush")]
)
def test_a_path_or_a_setting_that_is_not_understood_is_no_broken_connection(
    monkeypatch: pytest.MonkeyPatch, url: str, setting: str
) -> None:
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", setting)
    with pytest.raises(CheckpointError, match=r"path in its URL, or a setting, is not understood") as error:
        ObjectStoreFiles(S3(url, lambda: access({})))
    assert error.value.where == url
    assert "AWS_*" in error.value.fix
    assert "hush" not in f"{error.value!r} {error.value.__cause__}"


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "understudy_node.checkpoint.object_store", raising=False)
    with pytest.raises(CheckpointError, match="library for S3 is not installed") as error:
        open_checkpoint_files("s3://bucket/x")
    assert "pip install 'understudy-spark[node,s3]" in error.value.fix


def test_without_credentials_the_error_says_where_they_were_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(variable, raising=False)
    found = access({"AWS_CONFIG_FILE": "/etc/aws", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    nowhere = replace(found, config={**found.config, "metadata_endpoint": "http://127.0.0.1:9"})
    files = ObjectStoreFiles(S3("s3://bucket/x", lambda: nowhere), limits=StoreLimits(renew_ms=0))
    with pytest.raises(CheckpointError) as error:
        files.list("commits")
    what = error.value.what
    assert "none were found, looked in the environment (AWS_ACCESS_KEY_ID, AWS_WEB_IDENTITY_TOKEN_FILE)" in what
    assert f"profile default of {CREDENTIALS} and of /etc/aws, the role of this container or machine" in what
    assert "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in error.value.fix
