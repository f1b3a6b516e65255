"""What S3, and stores that speak its protocol, have of their own. See `object_store.ObjectStore`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obstore.store import S3Store

from understudy_node.checkpoint.s3_access import S3Access, parse_location, s3_access
from understudy_node.checkpoint.store_failures import StoreTerms

if TYPE_CHECKING:
    from obstore.store import RetryConfig


class S3:
    """A checkpoint in a bucket."""

    terms = StoreTerms(
        tag="e_tag",
        expired=frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "RequestExpired"}),
        identity=re.compile("/latest/(?:api/token|meta-data/iam/security-credentials)"),
        no_credentials="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, give a credentials file, run under a role, or "
        "set AWS_SKIP_SIGNATURE=true for a public bucket (docs/object-stores.md)",
        policy="Allow s3:GetObject on the prefix and s3:ListBucket on the bucket (docs/object-stores.md); without "
        "s3:ListBucket a missing file looks like a refused one",
        endpoint="Check AWS_REGION and the endpoint (docs/object-stores.md)",
        not_https="Set AWS_ENDPOINT_URL, or AWS_ALLOW_HTTP=true",
    )

    def __init__(self, url: str, access: Callable[[], S3Access] | None = None) -> None:
        """`access` says who reads; by default what the environment and the files of this process say."""
        self._location = parse_location(url)
        self._access = access or (lambda: s3_access(os.environ, _text_of))
        self.url = self._location.url
        self.looked_in = ""

    def open(self, client: dict[str, Any], retry: RetryConfig) -> S3Store:
        access = self._access()
        self.looked_in = access.looked_in
        if access.allow_http:
            client["allow_http"] = True
        bucket, prefix, keywords = self._location.bucket, self._location.prefix or None, dict[str, Any](access.config)
        return S3Store(bucket, prefix=prefix, client_options=client, retry_config=retry, **keywords)  # type: ignore[arg-type]


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
