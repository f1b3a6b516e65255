"""Says what a failed request to S3 means: whether to try again, and what the reader should do (pure).

The library's errors are texts with the whole request and reply in them. Only the status, S3's code and the kind of a
broken connection are taken out of them: the rest may hold what must not be shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

_STATUS = re.compile(r"status code: (\d{3})\b")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_KIND = re.compile(r"\bkind: (\w{1,32}),")
_NO_ROLE = "/latest/api/token"
"""Where the library looks for an instance's role, when nothing else names credentials."""

_EXPIRED = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "RequestExpired"})
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})

CONNECTION = "Check that the node can reach the endpoint; it asks again by itself"
THROTTLED = "The node asks again by itself, more slowly; if it persists, raise the store's limits or use fewer nodes"
CREDENTIALS = (
    "Renew the credentials where they come from: files and roles are read again by themselves, the environment needs a "
    "restart"
)
POLICY = (
    "Allow s3:GetObject on the prefix and s3:ListBucket on the bucket (docs/object-stores.md); without s3:ListBucket a "
    "missing file looks like a refused one"
)


class Meaning(Enum):
    """What follows from a failure."""

    TRY_AGAIN = "try-again"
    REFUSED = "refused"
    """The credentials, or what they allow: new ones may help."""
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed request. `reason` and `fix` are fit for messages."""

    meaning: Meaning
    reason: str
    fix: str
    has_no_credentials: bool = False


def failure_of(error: Exception) -> Failure:
    """What an exception of the library means, by its class's name and its text."""
    text = str(error)
    status, code = _STATUS.search(text), _CODE.search(text)
    if status is None:
        return _without_status(error, text)
    number = int(status[1])
    said = f"{number} {code[1]}" if code else str(number)
    # A reply to HEAD has no body, so 400 has no code there: an expired token is what it usually says.
    if number in (401, 403) or (number == 400 and (code is None or code[1] in _EXPIRED)):
        expired = number == 400
        why = "says that the credentials have expired" if expired else "refuses the credentials, or what they ask for"
        return Failure(Meaning.REFUSED, f"the store {why} ({said})", CREDENTIALS if expired else POLICY)
    if number in _TRANSIENT:
        throttled = number in (429, 503)
        reason = "the store asks for fewer requests" if throttled else "the store failed"
        return Failure(Meaning.TRY_AGAIN, f"{reason} ({said})", THROTTLED if throttled else CONNECTION)
    if number == 404:
        return Failure(Meaning.FINAL, f"there is no such bucket ({said})", "Check the bucket's name and the endpoint")
    return Failure(
        Meaning.FINAL, f"the store answered {said}", "Check AWS_REGION and the endpoint (docs/object-stores.md)"
    )


def _without_status(error: Exception, text: str) -> Failure:
    if _NO_ROLE in text:
        return Failure(
            Meaning.REFUSED,
            "there are no credentials: none were found",
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, give a credentials file, run under a role, or set "
            "AWS_SKIP_SIGNATURE=true for a public bucket (docs/object-stores.md)",
            has_no_credentials=True,
        )
    if "BadScheme" in text:
        return Failure(Meaning.FINAL, "the endpoint is no https:// URL", "Set AWS_ENDPOINT_URL, or AWS_ALLOW_HTTP=true")
    kind = _KIND.search(text)
    what = kind[1] if kind else type(error).__name__
    reasons = {"Connect": "no connection to the store", "Timeout": "the store did not answer in time"}
    return Failure(Meaning.TRY_AGAIN, reasons.get(what, f"the connection to the store broke ({what})"), CONNECTION)
