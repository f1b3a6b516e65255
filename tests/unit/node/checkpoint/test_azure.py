"""Where a checkpoint in Azure Storage is and who reads it, by URL and environment."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_node.checkpoint.azure import Azure, azure_access
from understudy_node.checkpoint.object_store import ObjectStoreFiles, StoreAccess
from understudy_node.checkpoint.opening import open_checkpoint_files
from understudy_node.checkpoint.store_files import StoreLimits
from understudy_shared.base.errors import CheckpointError, NotACheckpointError, SettingsError

CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"
KEY = "aHVzaA=="
OF_TEAM = f"DefaultEndpointsProtocol=https;AccountName=team;AccountKey={KEY};EndpointSuffix=core.windows.net"


def access(environ: Mapping[str, str], account: str | None = "team", cloud: str = "core.windows.net") -> StoreAccess:
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
    assert access({"AZURE_STORAGE_ACCOUNT_NAME": "team"}, None).config == {"account_name": "team"}
    with pytest.raises(SettingsError, match="names a storage account") as error:
        access({}, None)
    assert "abfss://container@account.dfs.core.windows.net/path" in error.value.fix


@pytest.mark.parametrize(
    "url",
    [
        "az://",
        "abfss:///x",
        "abfss://box@team/x",
        "abfss://box@team.files.core.windows.net/x",
        "abfss://box:hush@team.dfs.core.windows.net/x",
        "abfss://box@team.dfs.core.windows.net/x?sv=2026&sig=hush",
        "az://box?sig=hush",
    ],
)
def test_what_is_no_container_is_refused_and_its_secret_not_shown(url: str) -> None:
    with pytest.raises(NotACheckpointError, match="not a location in Azure Storage") as error:
        Azure(url)
    assert "hush" not in str(error.value)


@given(st.text(max_size=40))
def test_any_text_is_a_location_or_refused(text: str) -> None:
    try:
        found = Azure(f"abfss://{text}")
    except NotACheckpointError:
        return
    assert text.startswith(found.bucket)


def test_the_url_says_which_cloud_is_asked() -> None:
    assert access({}).config["endpoint"] == "https://team.blob.core.windows.net"
    assert access({}, "team", "core.chinacloudapi.cn").config["endpoint"] == "https://team.blob.core.chinacloudapi.cn"


def test_the_environment_comes_first_and_the_library_reads_it() -> None:
    named = {"AZURE_STORAGE_ENDPOINT": "https://private.example", "AZURE_STORAGE_ACCOUNT_KEY": KEY, CONNECTION: OF_TEAM}
    assert access(named).config == {"account_name": "team"}


@pytest.mark.parametrize(
    ("credentials", "expected"),
    [
        (f"AccountName=team;AccountKey={KEY}", {"account_key": KEY}),
        ("SharedAccessSignature=sv=1&sig=a%3D;BlobEndpoint=https://x.example/", {"sas_key": "sv=1&sig=a%3D"}),
    ],
)
def test_a_connection_string_has_a_key_or_a_signature(credentials: str, expected: Mapping[str, str]) -> None:
    found = access({CONNECTION: credentials})
    assert expected.items() <= found.config.items()
    assert next(iter(expected.values())) not in repr(found)


def test_a_connection_string_names_account_and_endpoint_where_the_url_does_not() -> None:
    elsewhere = OF_TEAM.replace("core.windows.net", "core.usgovcloudapi.net")
    assert access({CONNECTION: elsewhere}, None).config == {
        "account_name": "team",
        "account_key": KEY,
        "endpoint": "https://team.blob.core.usgovcloudapi.net",
    }
    private = access({CONNECTION: f"{OF_TEAM};BlobEndpoint=http://10.0.0.1:10000/team/"})
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
        access({CONNECTION: text})
    assert "hush" not in str(error.value)
    assert KEY not in str(error.value)


@pytest.mark.parametrize("variable", ["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"])
def test_an_endpoint_without_tls_is_allowed_by_naming_it(variable: str) -> None:
    assert access({variable: "http://127.0.0.1:10000/team"}).allow_http
    assert not access({variable: "https://127.0.0.1:10000/team"}).allow_http


def test_a_url_is_read_by_this_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=1&sig=hush")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "team")
    for url in ("abfss://box@team.dfs.core.windows.net/x", "az://box/x", "wasbs://box@team.blob.core.windows.net/x"):
        files = open_checkpoint_files(url)
        assert isinstance(files, ObjectStoreFiles)
        assert files.url == url
        assert "hush" not in repr(files)


def test_without_credentials_the_error_says_where_they_were_looked_for() -> None:
    found = access({"AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:9"})
    settings = {**found.config, "msi_endpoint": "http://127.0.0.1:9/metadata/identity/oauth2/token"}
    nowhere = StoreAccess(settings, found.allow_http, found.looked_in)
    place = Azure("abfss://box@team.dfs.core.windows.net/x", lambda: nowhere)
    with pytest.raises(CheckpointError) as error:
        ObjectStoreFiles(place, limits=StoreLimits(renew_ms=0)).list("commits")
    assert "none were found, looked in the environment (AZURE_STORAGE_TOKEN, AZURE_STORAGE_ACC" in error.value.what
    assert "the managed identity of this machine" in error.value.what
    assert "Set AZURE_STORAGE_ACCOUNT_KEY" in error.value.fix
