"""Variables of the environment that are there without a value, as a container's settings often have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from understudy_node.checkpoint.azure import azure_access
from understudy_node.checkpoint.gcs import gcs_access
from understudy_node.checkpoint.object_store import StoreAccess
from understudy_node.checkpoint.s3 import s3_access
from understudy_shared.base.errors import SettingsError

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
