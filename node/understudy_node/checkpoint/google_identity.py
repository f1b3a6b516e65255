"""Tokens of Google by identities that the library of object stores does not know: those of other providers, and of
service accounts that another identity impersonates.

google-auth reads the file, takes what proves the identity, and exchanges it for a token. Rule: a token is renewed ahead
of its end by a thread of its own, and requests go on with the one that is still valid; only who has no valid token
waits.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from understudy_shared.base.errors import SettingsError
from understudy_shared.base.extras import install_fix

READ_ONLY = "https://www.googleapis.com/auth/devstorage.read_only"

KINDS = frozenset({"external_account", "external_account_authorized_user", "impersonated_service_account"})
"""The types of files that are read here: workload and workforce identity federation, and impersonation."""

EARLY_S = 300.0
"""A token that has less left is renewed."""

LEAST_S = 10.0
"""A token that has less left is not used: it may end on its way."""

AGAIN_S = 5.0
"""The wait after a renewal that failed, while the present token is valid."""

DEADLINES = httpx.Timeout(5.0, connect=3.0)

Renew = Callable[[], tuple[str, float]]
"""A function that returns a new token and the seconds until its end."""


class IdentityError(Exception):
    """A provider of identities gave no token. The text has a status at most, never the reply."""


class RenewedToken:
    """The provider of tokens: the library calls it for each request once a token has `refresh_threshold` left."""

    refresh_threshold = timedelta(seconds=EARLY_S)

    def __init__(self, renew: Renew, now_s: Callable[[], float] = time.monotonic) -> None:
        self._renew_now, self._now_s = renew, now_s
        self._renewing = threading.Lock()
        self._present, self._not_before_s = ("", -math.inf), -math.inf

    def __call__(self) -> dict[str, Any]:
        """Return the present token. Raises IdentityError without a valid one, where no new one can be had."""
        left_s = self._left_s()
        if left_s < LEAST_S:
            with self._renewing:
                if self._left_s() < LEAST_S:  # who waited finds what the other one brought
                    self._renew()
        elif left_s < EARLY_S and self._now_s() >= self._not_before_s and self._renewing.acquire(blocking=False):
            self._begin_ahead()
        token, ends_s = self._present
        return {"token": token, "expires_at": datetime.now(UTC) + timedelta(seconds=ends_s - self._now_s())}

    def _left_s(self) -> float:
        return self._present[1] - self._now_s()

    def _begin_ahead(self) -> None:
        try:
            threading.Thread(target=self._renew_ahead, name="google-token", daemon=True).start()
        except RuntimeError:  # there may be no more threads, or the process ends
            self._renewing.release()

    def _renew_ahead(self) -> None:
        try:
            self._renew()
        except IdentityError:
            self._not_before_s = self._now_s() + AGAIN_S  # requests say so once the present token has ended
        finally:
            self._renewing.release()

    def _renew(self) -> None:
        token, lasts_s = self._renew_now()
        self._present = token, self._now_s() + lasts_s


def google_token(info: Mapping[str, Any], path: Path) -> RenewedToken:
    """Return the tokens of the identity that a file describes. Raises SettingsError where it cannot be understood."""
    kind = info["type"]
    try:  # an extra, and slow to import
        from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415
    except ImportError as error:
        raise SettingsError(
            f"The library for credentials of the type {kind} is not installed: {error}",
            where=str(path),
            fix=install_fix("node,gcs"),
        ) from error
    try:
        credentials = _credentials(info)
    except (GoogleAuthError, ValueError, KeyError, TypeError, AttributeError):  # whose text may have a secret in it
        raise SettingsError(
            f"The file's credentials of the type {kind} are not understood",
            where=str(path),
            fix="Make it again by gcloud (docs/object-stores.md)",
        ) from None
    return RenewedToken(lambda: _renewed(credentials))


def _credentials(info: Mapping[str, Any]) -> Any:
    """Return google-auth's credentials of a file. Raises what a file that is not understood makes it raise."""
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


def _renewed(credentials: Any) -> tuple[str, float]:
    """Ask for a token. Raises IdentityError."""
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415

    request = _Request()
    try:
        credentials.refresh(request)
    except (GoogleAuthError, httpx.HTTPError, OSError, ValueError):  # whose text may be the provider's
        raise IdentityError(request.said) from None
    lasts = credentials.expiry.replace(tzinfo=UTC) - datetime.now(UTC)
    return str(credentials.token), lasts.total_seconds()


class _Request:
    """The requests of google-auth, by the client that nodes have. `said` is what became of the last one."""

    def __init__(self) -> None:
        self.said = "kind: NoProof,"

    def __call__(  # google-auth's form
        self,
        url: str,
        method: str = "GET",
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **_: object,
    ) -> _Response:
        try:
            reply = httpx.request(method, url, content=body, headers=dict(headers or {}), timeout=timeout or DEADLINES)
        except httpx.TimeoutException:
            self.said = "kind: Timeout,"
            raise
        except httpx.HTTPError:
            self.said = "kind: Connect,"
            raise
        self.said = f"status code: {reply.status_code}"
        return _Response(reply)


class _Response:
    """A reply as google-auth reads it."""

    def __init__(self, reply: httpx.Response) -> None:
        self.status, self.headers, self.data = reply.status_code, reply.headers, reply.content
