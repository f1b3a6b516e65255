"""The parts of `object_store.ObjectStore` that are specific to Google Cloud Storage.

The library reads the environment, key files and files of gcloud, and asks the metadata service (GKE, Compute Engine);
`google_identity.py` adds identity federation and impersonation. The file is looked at here first: the library does not
say which one it read, nor what is wrong with it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from obstore.store import GCSStore

from understudy_node.checkpoint.google_identity import KINDS, google_token
from understudy_node.checkpoint.store_access import (
    ReadFile,
    StoreAccess,
    StoreFolder,
    location_of,
    refuse_empty,
    text_of,
)
from understudy_node.checkpoint.store_failures import StoreTerms
from understudy_shared.base.errors import SettingsError

_LOCATION = re.compile(r"gc?s://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?:/([^?#]*))?", re.ASCII | re.DOTALL)
_KEYS = ("GOOGLE_BEARER_TOKEN", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY")
_ENDPOINT = "GOOGLE_BASE_URL"
_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_READ = KINDS | {"service_account", "authorized_user"}
_TYPE = re.compile(r"[a-z_]{1,40}")


class GCS(StoreFolder):
    """A checkpoint in a bucket: the objects below `prefix`, or all with "", as the URL says."""

    library = GCSStore
    terms = StoreTerms(
        tag="version",  # the generation: the entity tag is a hash of the content, and equal content has an equal one
        condition="version",
        bucket="bucket",
        expired=frozenset(),
        identity=re.compile("/computeMetadata/v1/instance/service-accounts"),
        no_credentials=f"Set {_FILE} to a service account's key file, use `gcloud auth application-default login`, "
        "run under a service account, or set GOOGLE_SKIP_SIGNATURE=true for a public bucket (docs/object-stores.md)",
        policy="Grant storage.objects.get and storage.objects.list on the bucket, as the role Storage Object Viewer "
        "does (docs/object-stores.md); without storage.objects.list a missing file looks like a refused one",
        settings="Check the bucket's name, and what is set by GOOGLE_* (docs/object-stores.md)",
        not_https="Set GOOGLE_BASE_URL to the whole URL, http:// included",
    )

    def __init__(self, url: str, access: Callable[[], StoreAccess] | None = None) -> None:
        """Parse the URL.

        `access` returns the credentials; the default takes them from the environment and files of this process.
        """
        fix = "Write gs://bucket/path. Credentials come from the environment, a key file or a service account"
        location = location_of(url, _LOCATION, store="Google Cloud Storage", fix=fix)
        super().__init__(url, location[1], location[2], access or (lambda: gcs_access(os.environ, text_of)))


def gcs_access(environ: Mapping[str, str], read_file: ReadFile) -> StoreAccess:
    """Return the credentials' file and the endpoint, in the order of Google's tools. Raises SettingsError."""
    refuse_empty(environ, (*_KEYS, _FILE, _ENDPOINT))
    gcloud = environ.get("CLOUDSDK_CONFIG") or f"{environ.get('HOME', '~')}/.config/gcloud"
    default = Path(gcloud, "application_default_credentials.json").expanduser()
    named = environ.get(_FILE)
    path = Path(named or default)
    settings: dict[str, str] = {}
    provider = None
    if not _is_named(environ):
        text = read_file(path)
        if text is not None:
            found = _read(text, path)
            if found["type"] in KINDS:
                provider = google_token(found, path)
            else:
                settings["application_credentials"] = str(path)
        elif named:
            raise SettingsError("The file of credentials cannot be read", where=str(path), fix=f"Check {_FILE}")
    looked_in = (
        f"the environment ({', '.join(_KEYS)}, {_FILE}), {default}, the service account of this pod or machine "
        "(metadata service)"
    )
    endpoint = environ.get(_ENDPOINT) or "https://storage.googleapis.com"
    return StoreAccess(settings, endpoint.startswith("http://"), looked_in, provider, endpoint)


def _is_named(environ: Mapping[str, str]) -> bool:
    """Whether the environment has credentials, or needs no credentials, so that no file is read here."""
    unsigned = environ.get("GOOGLE_SKIP_SIGNATURE", "").lower() in {"true", "1"}
    return unsigned or any(environ.get(variable) for variable in _KEYS)


def _read(text: str, path: Path) -> Mapping[str, Any]:
    """Return a file's credentials. Raises SettingsError if their type is not supported."""
    try:
        found = json.loads(text)
    except ValueError:  # whose text repeats the file's
        found = None
    kind = found.get("type") if isinstance(found, dict) else None
    if found is not None and kind in _READ:
        return found  # type: ignore[no-any-return]  # a JSON object
    if isinstance(kind, str) and _TYPE.fullmatch(kind):
        what = f"Credentials of the type {kind} are not supported"
    else:
        what = "The file has no credentials of Google"
    raise SettingsError(
        what,
        where=str(path),
        fix=f"Set {_FILE} to a service account's key file, or run under a service account of GKE or Compute Engine",
    )
