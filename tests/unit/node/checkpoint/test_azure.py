"""Where a checkpoint in Azure Storage is and who reads it, by URL and environment."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from understudy_node.checkpoint.azure import Azure, azure_access
from understudy_node.checkpoint.store_access import StoreAccess
from understudy_shared.base.errors import NotACheckpointError, SettingsError

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
