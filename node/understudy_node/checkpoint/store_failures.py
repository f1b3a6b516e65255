"""Says what a failed request to an object store means: whether to try again, and what the reader should do (pure).

The library's classes decide where they exist. For listings, throttling and broken connections there are no classes:
the status, the store's code and the kind of break are taken out of the error's text. The rest of that text is never
shown: it has the whole request and reply. After a text without any of them the request is tried again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

from understudy_node.checkpoint.failure import CONNECTION, CREDENTIALS, PROVIDER, THROTTLED, Failure, Meaning

_STATUS = re.compile(r"status code: (\d{3})\b")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_KIND = re.compile(r"\bkind: (\w{1,32}),")
_TOKEN = re.compile(r"\bsource: TokenRequest\b|\bExternal \w+ credential provider\b|\bError performing POST\b")
"""A request for a token to the provider of identities, not one to the store, which is only read."""

_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_BREAKS = {"Connect": "no connection to the store", "Timeout": "the store did not answer in time"}
_PROVIDER = "the provider of identities"
_PROVIDER_BREAKS = {
    "Connect": f"no connection to {_PROVIDER}",
    "Timeout": f"{_PROVIDER} did not answer in time",
    "NoProof": f"what proves the identity to {_PROVIDER} cannot be read",
}


@dataclass(frozen=True, slots=True)
class StoreTerms:
    """The words of one kind of store, and the advice to its users after a failure."""

    tag: Literal["e_tag", "version"]
    """The field of an object's metadata that changes with every write."""
    condition: Literal["if_match", "version"]
    """The option of a request that is answered only from the content with that tag."""
    bucket: str
    """The store's word for a bucket."""
    expired: frozenset[str]
    """Codes that come with status 400 when credentials have expired; empty where they come with 401 or 403."""
    identity: re.Pattern[str]
    """The address where the library asks for the machine's identity when there are no other credentials."""
    no_credentials: str
    policy: str
    settings: str
    not_https: str
    provider: re.Pattern[str] | None = None
    """The address of another provider of identities, which is only asked where it is named."""
    away: str = CONNECTION
    """The advice when there is no connection."""
    folder_mark: str | None = None
    """The attribute of an object that only marks a folder, where its name does not say so."""


def failure_of(error: Exception, terms: StoreTerms, looked_in: str) -> Failure:
    """Decide what an exception of the library means. `looked_in`: the places where credentials were looked for."""
    # The branches are in order of precedence: the library tells failures apart by text, and one text may fit several.
    text = str(error)
    found, code = _STATUS.search(text), _CODE.search(text)
    status = int(found[1]) if found else 0
    said = f"{status} {code[1]}" if code else str(status or type(error).__name__)
    of_provider = _of_provider(text, status, said, terms, looked_in)
    if of_provider is not None:
        return of_provider
    if status in _TRANSIENT:
        throttled = status in (429, 503)
        reason = "the store asks for fewer requests" if throttled else "the store failed"
        return Failure(Meaning.TRY_AGAIN, f"{reason} ({said})", THROTTLED if throttled else CONNECTION)
    if status in (401, 403) or isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
        reason = f"the store refuses the credentials, or what they ask for ({said})"
        return Failure(Meaning.REFUSED, reason, terms.policy)
    # A reply to HEAD has no body, so 400 has no code there: an expired token is what it usually says.
    if status == 400 and terms.expired and (code is None or code[1] in terms.expired):
        return Failure(Meaning.REFUSED, f"the store says that the credentials have expired ({said})", CREDENTIALS)
    if status == 404:
        reason, fix = f"there is no such {terms.bucket} ({said})", f"Check the {terms.bucket}'s name and the endpoint"
        return Failure(Meaning.FINAL, reason, fix)
    if status:
        return Failure(Meaning.FINAL, f"the store answered {said}", terms.settings)
    if "BareRedirect" in text:
        return Failure(Meaning.FINAL, "the store says that the bucket is elsewhere, in another region", terms.settings)
    if "BadScheme" in text:
        return Failure(Meaning.FINAL, "the endpoint is not an https:// URL", terms.not_https)
    kind = _KIND.search(text)
    what = kind[1] if kind else said
    fix = terms.away if what == "Connect" else CONNECTION
    return Failure(Meaning.TRY_AGAIN, _BREAKS.get(what, f"the connection to the store broke ({what})"), fix)


def _of_provider(text: str, status: int, said: str, terms: StoreTerms, looked_in: str) -> Failure | None:
    """Decide what the failure of a request for credentials means; None if the store itself was asked."""
    is_machine = terms.identity.search(text) is not None
    is_other = _TOKEN.search(text) or (terms.provider is not None and terms.provider.search(text))
    if not (is_machine or is_other) or "BadScheme" in text:
        return None
    if status in _TRANSIENT:
        return Failure(Meaning.TRY_AGAIN, f"{_PROVIDER} failed ({said})", PROVIDER)
    if is_machine:
        reason = f"there are no credentials: none were found, looked in {looked_in}"
        return Failure(Meaning.REFUSED, reason, terms.no_credentials)
    if 400 <= status < 500:
        return Failure(Meaning.REFUSED, f"{_PROVIDER} refuses the credentials ({said})", CREDENTIALS)
    kind = _KIND.search(text)
    what = kind[1] if kind else said
    return Failure(
        Meaning.TRY_AGAIN, _PROVIDER_BREAKS.get(what, f"the connection to {_PROVIDER} broke ({what})"), PROVIDER
    )
