"""The parts of `object_store.StoreFolder` that are specific to Google Cloud Storage.

The library reads the environment, key files and files of gcloud, and asks the metadata service (GKE, Compute Engine);
google-auth, in the extra `gcs`, adds identity federation and impersonation. The file is checked here first: the library
says neither which one it read nor what is wrong with it.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

from obstore.store import GCSStore

from understudy_node.checkpoint.object_store import (
    StoreAccess,
    StoreFolder,
    StoreTerms,
    location_of,
    refuse_empty,
)
from understudy_node.checkpoint.store_files import ReadFile, text_of
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.extras import install_fix

_LOCATION = re.compile(r"gc?s://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?:/([^?#]*))?", re.ASCII | re.DOTALL)
_KEYS = ("GOOGLE_BEARER_TOKEN", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY")
_ENDPOINT = "GOOGLE_BASE_URL"
_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
READ_ONLY = "https://www.googleapis.com/auth/devstorage.read_only"

KINDS = frozenset({"external_account", "external_account_authorized_user", "impersonated_service_account"})
"""The types of files that google-auth reads: workload and workforce identity federation, and impersonation."""

IDENTITY_TIMEOUT_S = 5.0
"""Time of a request to a provider of identities; google-auth's own is two minutes."""

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
        """Parse the URL. By default the credentials are this process's."""
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
    except ValueError:  # its text repeats the file's
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


class IdentityTokenError(Exception):
    """A provider of identities gave no token. The text has a status at most, never the reply."""


class GoogleToken:
    """The tokens of an identity that google-auth knows: the library asks for one when its token has less than
    `refresh_threshold` left. One caller renews it; a token that is still valid is used until its end.
    """

    refresh_threshold = timedelta(minutes=3, seconds=45)
    """The remaining time at which google-auth calls a token stale."""

    def __init__(self, credentials: Any) -> None:
        from google.auth.transport.requests import Request  # noqa: PLC0415  # an extra, and slow to import

        self._credentials, self._request = credentials, Request()
        self._renewing = threading.Lock()
        self._said = ""

    def __call__(self) -> dict[str, Any]:
        """Return the current token. Raises IdentityTokenError if it expired and cannot be renewed."""
        from google.auth.credentials import TokenState  # noqa: PLC0415

        if self._state() is not TokenState.FRESH and self._renewing.acquire(
            blocking=self._state() is TokenState.INVALID
        ):
            try:
                if self._state() is not TokenState.FRESH:  # a caller that waited finds the other one's token
                    self._renew(is_needed=self._state() is TokenState.INVALID)
            finally:
                self._renewing.release()
        return {"token": self._credentials.token, "expires_at": self._credentials.expiry.replace(tzinfo=UTC)}

    def _state(self) -> object:
        return self._credentials.token_state

    def _renew(self, *, is_needed: bool) -> None:
        from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415

        self._said = "kind: NoProof,"
        try:
            self._credentials.refresh(self._ask)
        except (GoogleAuthError, OSError, ValueError):  # the text may be the provider's
            if is_needed:
                raise IdentityTokenError(self._said) from None

    def _ask(self, *place: Any, **options: Any) -> Any:
        """Make a request of google-auth, and note what became of it."""
        from google.auth.exceptions import TransportError  # noqa: PLC0415

        try:
            reply = self._request(*place, **{"timeout": IDENTITY_TIMEOUT_S, **options})
        except TransportError as error:
            is_late = "Timeout" in type(error.__cause__).__name__
            self._said = "kind: Timeout," if is_late else "kind: Connect,"
            raise
        self._said = f"status code: {reply.status}"
        return reply


def google_token(info: Mapping[str, Any], path: Path) -> GoogleToken:
    """Return the tokens of the identity that a file describes. Raises SettingsError where it cannot be understood."""
    kind = info["type"]
    try:
        from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415
    except ImportError as error:
        raise SettingsError(
            f"The library for credentials of the type {kind} is not installed: {error}",
            where=str(path),
            fix=install_fix("node,gcs"),
        ) from error
    try:
        return GoogleToken(_credentials(info))
    except (GoogleAuthError, ValueError, KeyError, TypeError, AttributeError):  # the text may have a secret in it
        raise SettingsError(
            f"The file's credentials of the type {kind} are not understood",
            where=str(path),
            fix="Make it again by gcloud (docs/object-stores.md)",
        ) from None


def _credentials(info: Mapping[str, Any]) -> Any:
    """Return google-auth's credentials for a file. Raises google-auth's errors for a file that it does not
    understand.
    """
    from google.auth import (  # noqa: PLC0415
        aws,
        external_account_authorized_user,
        identity_pool,
        impersonated_credentials,
        pluggable,
    )
    from google.oauth2 import credentials, service_account  # noqa: PLC0415

    plain: dict[str, Any] = {  # the first two are only read to impersonate another
        "authorized_user": credentials.Credentials.from_authorized_user_info,
        "service_account": service_account.Credentials.from_service_account_info,
        "external_account_authorized_user": external_account_authorized_user.Credentials.from_info,
    }
    if make := plain.get(info["type"]):
        return make(info)
    if info["type"] == "impersonated_service_account":
        url, impersonating = info["service_account_impersonation_url"], _credentials(info["source_credentials"])
        account = url.rpartition("/")[2].removesuffix(":generateAccessToken")
        impersonated: Any = impersonated_credentials.Credentials
        return impersonated(impersonating, account, [READ_ONLY], info.get("delegates"), iam_endpoint_override=url)
    source = info["credential_source"]
    if "certificate" in source:
        raise ValueError  # the request would have to show it
    federated: Any = identity_pool.Credentials
    if "executable" in source or "environment_id" in source:
        federated = pluggable.Credentials if "executable" in source else aws.Credentials
    return federated.from_info(info, scopes=[READ_ONLY])
