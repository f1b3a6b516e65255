"""The parts of `object_store.StoreFolder` that are specific to Azure Storage, flat or with a hierarchical namespace.

Both kinds of account are read at the blob endpoint. The library reads the environment, and knows service principals,
workload identity and managed identity. It does not read connection strings, so they are read here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping

from obstore.store import AzureStore

from understudy_node.checkpoint.object_store import StoreAccess, StoreFolder, StoreTerms, location_of, refuse_empty
from understudy_shared.base.errors import SettingsError

_LOCATION = re.compile(
    r"(?:az|azure|abfss?|wasbs?)://(?:(?P<at>[\w$.-]{1,63})@(?P<account>[a-z0-9-]{3,63})\.(?:dfs|blob)\."
    r"(?P<cloud>[a-z0-9.-]{3,200})|(?P<container>[\w$.-]{1,63}))(?:/(?P<path>[^?#]*))?",
    re.ASCII | re.DOTALL,
)
"""Hadoop's form names container and account; the short form leaves the account to the environment."""

_CONNECTION_STRING = "AZURE_STORAGE_CONNECTION_STRING"
_ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME"
_ENDPOINTS = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
_KEYS = ("AZURE_STORAGE_TOKEN", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
_SAS = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
_IDENTITIES = ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE")
_LOOKED_IN = (
    "the environment (AZURE_STORAGE_TOKEN, AZURE_STORAGE_ACCOUNT_KEY, AZURE_CLIENT_SECRET, AZURE_FEDERATED_TOKEN_FILE, "
    f"AZURE_STORAGE_SAS_TOKEN, {_CONNECTION_STRING}), the managed identity of this machine"
)


class Azure(StoreFolder):
    """A checkpoint in a container: the blobs below `prefix`, or all with "", as the URL says."""

    library = AzureStore
    terms = StoreTerms(
        tag="e_tag",
        condition="if_match",
        bucket="container",
        expired=frozenset(),
        identity=re.compile("/metadata/identity/oauth2/token"),
        no_credentials="Set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or a service principal, run under a "
        "workload identity or a managed identity, or set AZURE_SKIP_SIGNATURE=true for a public container "
        "(docs/object-stores.md)",
        policy="Grant the role Storage Blob Data Reader on the container, or make a SAS that is valid and has the "
        "permissions read and list (docs/object-stores.md)",
        settings="Check the account's and the container's name, and what is set by AZURE_* (docs/object-stores.md)",
        not_https="Set AZURE_STORAGE_ENDPOINT to the whole URL, http:// included",
        away="Check the account's name in the URL, and that the node can reach the account; it asks again by itself",
        folder_mark="hdi_isfolder",
    )

    def __init__(self, url: str, access: Callable[[], StoreAccess] | None = None) -> None:
        """Parse the URL. By default the credentials are this process's."""
        location = location_of(
            url,
            _LOCATION,
            store="Azure Storage",
            fix="Write abfss://container@account.dfs.core.windows.net/path, or az://container/path with "
            f"{_ACCOUNT}. Credentials come from the environment or an identity",
        )
        self.account, self.cloud = location["account"], location["cloud"]
        super().__init__(
            url,
            location["at"] or location["container"],
            location["path"],
            access or (lambda: azure_access(os.environ, self.account, self.cloud)),
        )


def azure_access(environ: Mapping[str, str], account: str | None, cloud: str | None) -> StoreAccess:
    """Return account, endpoint and credentials beyond the environment. Raises SettingsError.

    `account` and `cloud` are the URL's, as in `account.dfs.core.windows.net`; None if the URL names neither.
    """
    refuse_empty(environ, (*_KEYS, *_SAS, *_IDENTITIES, *_ENDPOINTS))
    given = _connection(environ.get(_CONNECTION_STRING, ""))
    name = account or environ.get(_ACCOUNT) or given.get("accountname")
    if name is None:
        raise SettingsError(
            "Neither the checkpoint's URL nor the environment names a storage account",
            where="environment",
            fix=f"Write abfss://container@account.dfs.core.windows.net/path, or set {_ACCOUNT}",
        )
    settings = {"account_name": name}
    if given and not any(environ.get(variable) for variable in (*_KEYS, *_SAS)):
        settings |= _keys(given, name)
    endpoint = next((environ[variable] for variable in _ENDPOINTS if environ.get(variable)), None)
    if endpoint is None and (endpoint := _endpoint(given, name, account, cloud)) is not None:
        settings["endpoint"] = endpoint
    asked_at = endpoint or f"https://{name}.blob.core.windows.net"
    return StoreAccess(settings, asked_at.startswith("http://"), _LOOKED_IN, endpoint=asked_at)


def _endpoint(given: Mapping[str, str], name: str, account: str | None, cloud: str | None) -> str | None:
    """Return the blob endpoint that the connection string or the URL names; None leaves it to the library."""
    if "blobendpoint" in given:
        return given["blobendpoint"].rstrip("/")
    if account is not None:
        return f"https://{account}.blob.{cloud}"
    if "endpointsuffix" in given:
        return f"{given.get('defaultendpointsprotocol', 'https')}://{name}.blob.{given['endpointsuffix']}"
    return None


def _connection(text: str) -> Mapping[str, str]:
    """Split a connection string; names are in lower case. Raises SettingsError, which does not repeat the text."""
    parts = [part.strip().partition("=") for part in text.split(";") if part.strip()]
    if not all(name and equals for name, equals, _ in parts):
        raise SettingsError(
            f"{_CONNECTION_STRING} is not understood",
            where="environment",
            fix="Copy it from the account's access keys: NAME=VALUE pairs with ; between them",
        )
    return {name.lower(): value for name, _, value in parts}


def _keys(given: Mapping[str, str], name: str) -> Mapping[str, str]:
    """Return the key or the SAS of a connection string, if it is for the account."""
    if given.get("accountname", name) != name:
        raise SettingsError(
            f"{_CONNECTION_STRING} is for the account {given['accountname']}, the checkpoint's URL is for {name}",
            where="environment",
            fix="Set the connection string of the checkpoint's account",
        )
    if "accountkey" in given:
        return {"account_key": given["accountkey"]}
    if "sharedaccesssignature" in given:
        return {"sas_key": given["sharedaccesssignature"]}
    raise SettingsError(
        f"{_CONNECTION_STRING} has neither AccountKey nor SharedAccessSignature",
        where="environment",
        fix="Copy it from the account's access keys",
    )
