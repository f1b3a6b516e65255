"""Where a checkpoint in S3, Azure or Google Cloud Storage is and who reads it: URL, environment and files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_node.checkpoint.azure import Azure, azure_access
from understudy_node.checkpoint.gcs import GCS, gcs_access
from understudy_node.checkpoint.object_store import ObjectStoreFiles, StoreAccess, StoreFolder
from understudy_node.checkpoint.opening import open_checkpoint_files
from understudy_node.checkpoint.s3 import S3, s3_access
from understudy_shared.base.errors import CheckpointError, NotACheckpointError, SettingsError

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


def of_s3(environ: Mapping[str, str], files: Mapping[Path, str] | None = None) -> StoreAccess:
    return s3_access({"HOME": "/home/u", **environ}, (files or {}).get)


@pytest.mark.parametrize(("scheme", "store"), [("s3", S3), ("s3a", S3), ("s3n", S3), ("gs", GCS), ("gcs", GCS)])
def test_a_location_is_a_bucket_and_a_prefix(scheme: str, store: Callable[[str], StoreFolder]) -> None:
    found = store(f"{scheme}://my-bucket.1/a b/c=d%20e/")
    assert (found.bucket, found.prefix, found.url) == (
        "my-bucket.1",
        "a b/c=d%20e",
        f"{scheme}://my-bucket.1/a b/c=d%20e",
    )
    assert store(f"{scheme}://my-bucket").prefix == ""


@pytest.mark.parametrize(
    "environ",
    [
        {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"},
        {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token"},
        {"AWS_SKIP_SIGNATURE": "true"},
    ],
)
def test_the_environment_of_s3_comes_first(environ: Mapping[str, str]) -> None:
    assert of_s3(environ, {CREDENTIALS: PROFILES}).config == {}


@pytest.mark.parametrize("lone", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_one_key_without_the_other_is_refused(lone: str) -> None:
    with pytest.raises(SettingsError, match="is not set"):
        of_s3({lone: "hush"})


def test_profiles_of_the_credentials_file_are_read() -> None:
    found = of_s3({}, {CREDENTIALS: PROFILES})
    assert dict(found.config) == {"access_key_id": "AKDEFAULT", "secret_access_key": "default-secret"}
    found = of_s3({"AWS_PROFILE": "team"}, {CREDENTIALS: PROFILES})
    assert dict(found.config) == {
        "access_key_id": "AKTEAM",
        "secret_access_key": "team%secret",
        "session_token": "team-token",
    }
    assert "secret" not in repr(found)
    elsewhere = of_s3({"AWS_SHARED_CREDENTIALS_FILE": "/run/keys"}, {Path("/run/keys"): PROFILES})
    assert elsewhere.config["access_key_id"] == "AKDEFAULT"


def test_the_config_file_gives_region_endpoint_and_keys_of_named_profiles() -> None:
    config = "[default]\nregion=eu-west-1\n[profile team]\nregion=eu-north-1\nendpoint_url=http://store:9000\n"
    assert of_s3({}, {CONFIG: config}).config == {"region": "eu-west-1"}
    found = of_s3({"AWS_PROFILE": "team"}, {CONFIG: config, CREDENTIALS: PROFILES})
    assert found.config["region"] == "eu-north-1"
    assert found.config["endpoint"] == "http://store:9000"
    assert found.allow_http
    stated = of_s3({"AWS_REGION": "us-east-2", "AWS_ENDPOINT_URL": "https://s3.local"}, {CONFIG: config})
    assert stated.config == {}
    assert not stated.allow_http


@pytest.mark.parametrize(
    ("profile", "match"),
    [("half", "lacks a key"), ("signed-in", "sso_session, which is not supported"), ("nobody", "no profile nobody")],
)
def test_a_profile_that_gives_no_keys_is_refused_by_name(profile: str, match: str) -> None:
    with pytest.raises(SettingsError, match=match) as error:
        of_s3({"AWS_PROFILE": profile}, {CREDENTIALS: PROFILES})
    assert "secret" not in str(error.value)


def test_a_file_that_does_not_parse_is_named_without_its_lines() -> None:
    with pytest.raises(SettingsError, match="does not parse") as error:
        of_s3({}, {CREDENTIALS: "aws_secret_access_key=hush\n"})
    assert "hush" not in str(error.value)
    assert error.value.where == str(CREDENTIALS)


@pytest.mark.parametrize(
    ("url", "setting"), [("s3://bucket/a//b", "true"), ("s3://bucket/../b", "true"), ("s3://bucket/b", "hush")]
)
def test_a_path_or_a_setting_that_is_not_understood_is_no_broken_connection(
    monkeypatch: pytest.MonkeyPatch, url: str, setting: str
) -> None:
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", setting)
    with pytest.raises(CheckpointError, match=r"path in its URL, or a setting, is not understood") as error:
        ObjectStoreFiles(S3(url, lambda: of_s3({})))
    assert error.value.where == url
    assert "AWS_*" in error.value.fix
    assert "hush" not in f"{error.value!r} {error.value.__cause__}"


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "understudy_node.checkpoint.object_store", raising=False)
    with pytest.raises(CheckpointError, match="library for S3 is not installed") as error:
        open_checkpoint_files("s3://bucket/x")
    assert "pip install 'understudy-spark[node,s3]" in error.value.fix


CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"
KEY = "aHVzaA=="
OF_TEAM = f"DefaultEndpointsProtocol=https;AccountName=team;AccountKey={KEY};EndpointSuffix=core.windows.net"


def of_azure(environ: Mapping[str, str], account: str | None = "team", cloud: str = "core.windows.net") -> StoreAccess:
    return azure_access(environ, account, None if account is None else cloud)


@pytest.mark.parametrize("scheme", ["abfs", "abfss", "wasb", "wasbs", "az"])
@pytest.mark.parametrize("endpoint", ["dfs", "blob"])
def test_a_location_is_a_container_an_account_and_a_prefix_as_hadoop_writes_it(scheme: str, endpoint: str) -> None:
    url = f"{scheme}://my-box@team.{endpoint}.core.windows.net/a b/c=d%20e"
    found = Azure(f"{url}/")
    assert (found.bucket, found.account, found.prefix) == ("my-box", "team", "a b/c=d%20e")
    assert found.url == url
    assert Azure(f"{scheme}://my-box@team.{endpoint}.core.windows.net").prefix == ""


@pytest.mark.parametrize("scheme", ["az", "azure", "abfs", "abfss"])
def test_the_short_form_leaves_the_account_to_the_environment(scheme: str) -> None:
    found = Azure(f"{scheme}://my-box/a/b")
    assert (found.bucket, found.account, found.prefix) == ("my-box", None, "a/b")
    assert of_azure({"AZURE_STORAGE_ACCOUNT_NAME": "team"}, None).config == {"account_name": "team"}
    with pytest.raises(SettingsError, match="names a storage account") as error:
        of_azure({}, None)
    assert "abfss://container@account.dfs.core.windows.net/path" in error.value.fix


def test_the_url_says_which_cloud_is_asked() -> None:
    assert of_azure({}).config["endpoint"] == "https://team.blob.core.windows.net"
    assert of_azure({}, "team", "core.chinacloudapi.cn").config["endpoint"] == "https://team.blob.core.chinacloudapi.cn"


def test_the_environment_of_azure_comes_first() -> None:
    named = {"AZURE_STORAGE_ENDPOINT": "https://private.example", "AZURE_STORAGE_ACCOUNT_KEY": KEY, CONNECTION: OF_TEAM}
    assert of_azure(named).config == {"account_name": "team"}


@pytest.mark.parametrize(
    ("credentials", "expected"),
    [
        (f"AccountName=team;AccountKey={KEY}", {"account_key": KEY}),
        ("SharedAccessSignature=sv=1&sig=a%3D;BlobEndpoint=https://x.example/", {"sas_key": "sv=1&sig=a%3D"}),
    ],
)
def test_a_connection_string_has_a_key_or_a_signature(credentials: str, expected: Mapping[str, str]) -> None:
    found = of_azure({CONNECTION: credentials})
    assert expected.items() <= found.config.items()
    assert next(iter(expected.values())) not in repr(found)


def test_a_connection_string_names_account_and_endpoint_where_the_url_does_not() -> None:
    elsewhere = OF_TEAM.replace("core.windows.net", "core.usgovcloudapi.net")
    assert of_azure({CONNECTION: elsewhere}, None).config == {
        "account_name": "team",
        "account_key": KEY,
        "endpoint": "https://team.blob.core.usgovcloudapi.net",
    }
    private = of_azure({CONNECTION: f"{OF_TEAM};BlobEndpoint=http://10.0.0.1:10000/team/"})
    assert private.config["endpoint"] == "http://10.0.0.1:10000/team"
    assert private.allow_http


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("hush", "is not understood"),
        ("=hush;", "is not understood"),
        ("AccountName=team;Hush=hush", "has neither AccountKey nor SharedAccessSignature"),
        (f"AccountName=other;AccountKey={KEY}", "is for the account other, the checkpoint's URL is for team"),
    ],
)
def test_a_connection_string_that_does_not_fit_is_refused_without_its_text(text: str, match: str) -> None:
    with pytest.raises(SettingsError, match=match) as error:
        of_azure({CONNECTION: text})
    assert "hush" not in str(error.value)
    assert KEY not in str(error.value)


GCLOUD = Path("/home/u/.config/gcloud/application_default_credentials.json")
NAMED = Path("/run/key.json")
USER = json.dumps({"type": "authorized_user", "client_id": "c", "client_secret": "hush", "refresh_token": "hush"})


def of_gcs(environ: Mapping[str, str], files: Mapping[Path, str] | None = None) -> StoreAccess:
    return gcs_access({"HOME": "/home/u", **environ}, (files or {}).get)


@pytest.mark.parametrize(
    "variable", ["GOOGLE_BEARER_TOKEN", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_SKIP_SIGNATURE"]
)
def test_the_environment_of_gcs_comes_first(variable: str) -> None:
    assert of_gcs({variable: "true"}, {GCLOUD: USER}).config == {}


def test_a_file_that_is_named_comes_before_that_of_gcloud() -> None:
    both = {NAMED: USER, GCLOUD: USER}
    assert of_gcs({"GOOGLE_APPLICATION_CREDENTIALS": str(NAMED)}, both).config == {
        "application_credentials": str(NAMED)
    }
    assert of_gcs({}, both).config == {"application_credentials": str(GCLOUD)}
    moved = Path("/etc/gcloud/application_default_credentials.json")
    assert of_gcs({"CLOUDSDK_CONFIG": "/etc/gcloud"}, {moved: USER}).config == {"application_credentials": str(moved)}


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
        of_gcs({"GOOGLE_APPLICATION_CREDENTIALS": str(NAMED)}, files)
    assert error.value.where == str(NAMED)
    assert "hush" not in str(error.value).lower()


def test_without_credentials_the_library_asks_the_machine_and_it_is_said_where_they_were_looked_for() -> None:
    for found, places in (
        (of_s3({"AWS_CONFIG_FILE": "/etc/aws"}), ["AWS_ACCESS_KEY_ID", str(CREDENTIALS), "/etc/aws", "the role of"]),
        (of_azure({}), ["AZURE_STORAGE_TOKEN", "the managed identity"]),
        (of_gcs({}), ["GOOGLE_BEARER_TOKEN", str(GCLOUD), "the service account"]),
    ):
        assert [place for place in places if place not in found.looked_in] == []
    assert of_s3({}).config == of_gcs({}).config == {}


Access = Callable[[Mapping[str, str]], StoreAccess]

ACCESS: dict[str, Access] = {
    "AWS": lambda environ: s3_access(environ, lambda _: None),
    "AZURE": lambda environ: azure_access(environ, "team", "core.windows.net"),
    "GOOGLE": lambda environ: gcs_access(environ, lambda _: None),
}


@pytest.mark.parametrize(
    ("variable", "beside"),
    [
        ("AWS_SESSION_TOKEN", {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}),
        ("AWS_ENDPOINT_URL_S3", {"AWS_ENDPOINT_URL": "https://minio.test"}),
        ("AWS_REGION", {"AWS_DEFAULT_REGION": "eu-central-1"}),
        ("AZURE_STORAGE_ACCOUNT_KEY", {"AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=s"}),
        ("AZURE_CLIENT_SECRET", {"AZURE_CLIENT_ID": "a", "AZURE_TENANT_ID": "b"}),
        ("GOOGLE_SERVICE_ACCOUNT", {"GOOGLE_BEARER_TOKEN": "t"}),
        ("GOOGLE_APPLICATION_CREDENTIALS", {}),
    ],
)
def test_a_variable_without_a_value_is_refused_by_name(variable: str, beside: Mapping[str, str]) -> None:
    """The library takes it for a value, and asks the store with it, in place of what is set beside it."""
    access = ACCESS[variable.partition("_")[0]]
    access(beside)
    with pytest.raises(SettingsError, match=f"{variable} is set, but has no value"):
        access({**beside, variable: ""})


STORES: dict[str, Callable[[str], StoreFolder]] = {"s3": S3, "gs": GCS, "abfss": Azure, "az": Azure}


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///x",
        "s3://key:hush@bucket/x",
        "s3://KEY@bucket/x",
        "s3://b?x=hush",
        "gs://",
        "gs:///x",
        "gs://key:hush@bucket/x",
        "gs://b?x=hush",
        "gs://bucket/x?t=hush",
        "az://",
        "abfss:///x",
        "abfss://box@team/x",
        "abfss://box@team.files.core.windows.net/x",
        "abfss://box:hush@team.dfs.core.windows.net/x",
        "abfss://box@team.dfs.core.windows.net/x?sv=2026&sig=hush",
        "az://box?sig=hush",
    ],
)
def test_what_is_no_bucket_is_refused_and_its_secret_not_shown(url: str) -> None:
    with pytest.raises(NotACheckpointError, match="not a location in ") as error:
        STORES[url.partition(":")[0]](url)
    assert "hush" not in str(error.value)


@pytest.mark.parametrize("scheme", ["s3", "gs", "abfss"])
@given(text=st.text(max_size=40))
def test_any_text_is_a_location_or_refused(scheme: str, text: str) -> None:
    try:
        found = STORES[scheme](f"{scheme}://{text}")
    except NotACheckpointError:
        return
    assert text.startswith(found.bucket)


@pytest.mark.parametrize(
    "variable",
    [
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT",
        "AZURE_STORAGE_ENDPOINT",
        "AZURE_ENDPOINT",
        "GOOGLE_BASE_URL",
    ],
)
def test_an_endpoint_without_tls_is_allowed_by_naming_it(variable: str) -> None:
    access = ACCESS[variable.partition("_")[0]]
    assert access({variable: "http://127.0.0.1:10000/team"}).allow_http
    assert not access({variable: "https://127.0.0.1:10000/team"}).allow_http
    assert not access({}).allow_http


@pytest.mark.parametrize(
    "url",
    [
        "abfss://box@team.dfs.core.windows.net/x",
        "az://box/x",
        "wasbs://box@team.blob.core.windows.net/x",
        "gs://bucket/x",
        "gcs://bucket/x",
    ],
)
def test_a_url_is_read_by_its_store_and_shows_no_secret(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=1&sig=hush")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "team")
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "hush")
    files = open_checkpoint_files(url)
    assert isinstance(files, ObjectStoreFiles)
    assert files.url == url
    assert "hush" not in repr(files)
