"""A checkpoint in an object store, by obstore (decisions 0036, 0076). Adapters hold what differs between stores.

Rule: content, size and entity tag of a reply belong together, and a download resumes only while the tag is the same:
nothing is half-read. The library reads the environment itself, and renews the credentials of roles and identities. An
adapter adds what the library cannot read: files in the format of a store's own tools.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, BinaryIO, Literal

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError

from understudy_node.checkpoint.files import (
    FileStat,
    hashed_tag,
    mtime_ns,
    refuse_escape,
    rewritten,
    too_large_to_read,
    vanished,
)
from understudy_node.checkpoint.store_files import (
    Consequence,
    Download,
    RepeatBudget,
    StorageFailure,
    StoreFiles,
    StoreLimits,
)
from understudy_shared.base.errors import CheckpointError, NotACheckpointError, SettingsError, UnderstudyError
from understudy_shared.base.masking import masked_location

COARSE_NS = 999_999_999
"""Replies give the time of the last write in whole seconds, cut off."""

PIECE_BYTES = 1 << 18
"""Bytes of a download that are delivered at once. A broken connection loses the rest of a piece."""

_FIX_CONNECTION = "Check that the node can reach the endpoint; it asks again by itself"
_FIX_PROVIDER = "Check that the node can reach it, and the files that the identity names; it asks again by itself"
_FIX_CREDENTIALS = (
    "Renew the credentials where they come from: files and roles are read again by themselves, the environment needs a "
    "restart"
)

_STATUS = re.compile(r"status code: (\d{3})\b")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_KIND = re.compile(r"\bkind: (\w{1,32}),")
_TOKEN = re.compile(r"\bsource: TokenRequest\b|\bExternal \w+ credential provider\b|\bError performing POST\b")
"""A request to the provider of identities for a token; requests to the store only read."""

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
    """The option that makes a request conditional on a tag."""
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
    """The address of another provider of identities, which is asked only if it is configured."""
    away: str = _FIX_CONNECTION
    """The advice when there is no connection."""
    folder_mark: str | None = None
    """The attribute of an object that only marks a folder, where its name does not say so."""


def failure_of(error: Exception, terms: StoreTerms, looked_in: str) -> StorageFailure:
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
        if status not in (429, 503):
            return StorageFailure(Consequence.TRY_AGAIN, f"the store failed ({said})", _FIX_CONNECTION)
        fix = "The node asks again by itself, more slowly; if it persists, raise the store's limits or use fewer nodes"
        return StorageFailure(Consequence.TRY_AGAIN, f"the store asks for fewer requests ({said})", fix)
    if status in (401, 403) or isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
        reason = f"the store refuses the credentials, or what they ask for ({said})"
        return StorageFailure(Consequence.REFUSED, reason, terms.policy)
    # A reply to HEAD has no body, so 400 has no code there: an expired token is what it usually says.
    if status == 400 and terms.expired and (code is None or code[1] in terms.expired):
        return StorageFailure(
            Consequence.REFUSED, f"the store says that the credentials have expired ({said})", _FIX_CREDENTIALS
        )
    if status == 404:
        reason, fix = f"there is no such {terms.bucket} ({said})", f"Check the {terms.bucket}'s name and the endpoint"
        return StorageFailure(Consequence.FINAL, reason, fix)
    if status:
        return StorageFailure(Consequence.FINAL, f"the store answered {said}", terms.settings)
    if "BareRedirect" in text:
        return StorageFailure(
            Consequence.FINAL, "the store says that the bucket is elsewhere, in another region", terms.settings
        )
    if "BadScheme" in text:
        return StorageFailure(Consequence.FINAL, "the endpoint is not an https:// URL", terms.not_https)
    kind = _KIND.search(text)
    what = kind[1] if kind else said
    fix = terms.away if what == "Connect" else _FIX_CONNECTION
    return StorageFailure(Consequence.TRY_AGAIN, _BREAKS.get(what, f"the connection to the store broke ({what})"), fix)


def _of_provider(text: str, status: int, said: str, terms: StoreTerms, looked_in: str) -> StorageFailure | None:
    """Decide what the failure of a request for credentials means; None if the store itself was asked."""
    is_machine = terms.identity.search(text) is not None
    is_other = _TOKEN.search(text) or (terms.provider is not None and terms.provider.search(text))
    if not (is_machine or is_other) or "BadScheme" in text:
        return None
    if status in _TRANSIENT:
        return StorageFailure(Consequence.TRY_AGAIN, f"{_PROVIDER} failed ({said})", _FIX_PROVIDER)
    if is_machine:
        reason = f"no credentials were found, looked in {looked_in}"
        return StorageFailure(Consequence.REFUSED, reason, terms.no_credentials)
    if 400 <= status < 500:
        return StorageFailure(Consequence.REFUSED, f"{_PROVIDER} refuses the credentials ({said})", _FIX_CREDENTIALS)
    kind = _KIND.search(text)
    what = kind[1] if kind else said
    return StorageFailure(
        Consequence.TRY_AGAIN,
        _PROVIDER_BREAKS.get(what, f"the connection to {_PROVIDER} broke ({what})"),
        _FIX_PROVIDER,
    )


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """The settings that the library gets beyond the environment."""

    config: Mapping[str, str] = field(repr=False)
    allow_http: bool
    looked_in: str
    """The places where credentials are looked for."""
    provider: Callable[[], Any] | None = field(default=None, repr=False)
    """The provider that the library asks for a token, instead of an identity that it knows itself."""
    endpoint: str = field(default="", repr=False)
    """The URL of the store; empty if it is not known here."""


class StoreFolder:
    """A checkpoint in a bucket or a container: the objects below `prefix`, or all with "", as the URL says. `access`
    returns the credentials, for each store that is opened.
    """

    terms: StoreTerms
    library: Callable[..., Any]
    """The library's class of such stores."""

    def __init__(self, url: str, bucket: str, path: str | None, access: Callable[[], StoreAccess]) -> None:
        self.url = masked_location(url.rstrip("/"))
        self.bucket, self.prefix = bucket, (path or "").strip("/")
        self.looked_in = self.endpoint = ""
        self._access = access

    def open(self, limits: StoreLimits) -> Any:
        """Open the library's store of the folder, with the present credentials."""
        access = self._access()
        self.looked_in, self.endpoint = access.looked_in, access.endpoint
        client: dict[str, Any] = {
            "connect_timeout": timedelta(milliseconds=limits.connect_ms),
            "read_timeout": timedelta(milliseconds=limits.stalled_ms),
            "timeout": timedelta(milliseconds=limits.request_ms),
        }
        return self.library(
            self.bucket,
            prefix=self.prefix or None,
            config=access.config,
            client_options={**client, "allow_http": True} if access.allow_http else client,
            # The library would repeat each request for itself: the budget here is for all calls together.
            retry_config={"max_retries": 0},
            **({} if access.provider is None else {"credential_provider": access.provider}),
        )


def location_of(url: str, form: re.Pattern[str], *, store: str, fix: str) -> re.Match[str]:
    """Parse a URL. Raises NotACheckpointError, which does not show its secrets, for one of another form."""
    found = form.fullmatch(url)
    if found is None:
        fix = f"{fix}, never from the URL (docs/object-stores.md)"
        raise NotACheckpointError(f"This is not a location in {store}", where=masked_location(url), fix=fix)
    return found


def refuse_empty(environ: Mapping[str, str], variables: Iterable[str]) -> None:
    """Raise SettingsError for an empty variable: the library would prefer it to the other settings."""
    for variable in variables:
        if environ.get(variable) == "":
            raise SettingsError(
                f"{variable} is set, but has no value", where="environment", fix="Unset it, or give it a value"
            )


class ObjectStoreFiles(StoreFiles[Any]):
    """A checkpoint in one store. A read makes one GET for each file, and another if that was cut."""

    answers = (FileNotFoundError, PreconditionError, UnderstudyError)

    def __init__(
        self, store: StoreFolder, *, limits: StoreLimits | None = None, budget: RepeatBudget | None = None
    ) -> None:
        """Ask nothing yet. `store` is opened again when it refuses the credentials."""
        self._store, self._terms = store, store.terms
        super().__init__(store.url, limits or StoreLimits(), budget)

    @property
    def endpoint(self) -> str:
        """The URL of the store, which may hold secrets; empty if it is not known."""
        return self._store.endpoint

    def stat(self, path: str) -> FileStat | None:
        """Make one HEAD."""
        refuse_escape(path)
        try:
            return self._stat_of(self._call("Cannot stat", path, lambda client: self._head(client, path)))
        except FileNotFoundError:
            return None

    def list(self, path: str) -> list[str] | None:
        """Make one request for each thousand names."""
        refuse_escape(path)
        found: Any = self._call("Cannot list", path, lambda client: obstore.list_with_delimiter(client, path or None))
        paths = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        # An empty object that is called like its directory marks it, there and in the directory above.
        names = dict.fromkeys(each.rpartition("/")[2] for each in paths if each.strip("/") != path.strip("/"))
        return [*names] if paths else None

    def _download(self, path: str, file: BinaryIO, max_bytes: int | None) -> FileStat:
        refuse_escape(path)
        where = self._where(path)
        download = _ObjectDownload(path, file, max_bytes, where, terms=self._terms)
        error = vanished(where)
        try:
            return self._stat_of(self._call("Cannot read", path, download.go_on, download))
        except FileNotFoundError:
            pass
        except PreconditionError:
            error = rewritten(where)
        raise error  # not from the library's error: its text has the request's URL

    def _head(self, client: Any, path: str) -> Any:
        if self._terms.folder_mark is None:
            return obstore.head(client, path)
        found = obstore.get(client, path, options={"head": True})  # the same request, and the reply's attributes
        refuse_folder(found, self._terms)
        return found.meta

    def _open(self) -> Any:
        try:
            return self._store.open(self._limits)
        except (BaseError, ValueError):  # the text may have any setting in it
            raise CheckpointError(
                "Cannot open the checkpoint's storage: the path in its URL, or a setting, is not understood",
                where=self.url,
                fix=self._terms.settings,
            ) from None

    def _failure_of(self, error: Exception) -> StorageFailure:
        return failure_of(error, self._terms, self._store.looked_in)

    def _stat_of(self, meta: Mapping[str, Any]) -> FileStat:
        tag = hashed_tag(meta[self._terms.tag])
        return FileStat(mtime_ns(meta["last_modified"]), meta["size"], tag, COARSE_NS)


@dataclass(slots=True)
class _ObjectDownload(Download):
    """The same from an object store. `meta` is the object's metadata, as the download began."""

    terms: StoreTerms = field(kw_only=True)
    meta: Any = None

    def go_on(self, client: Any) -> Any:
        """Start, or resume where the try before was cut. Return the object's metadata when the file is complete."""
        if self.meta is None or self.done != self.meta["size"]:
            self._ask(client)
        return self.meta

    def _ask(self, client: Any) -> None:
        options: Any = {}
        if self.done:
            if not (tag := self.meta[self.terms.tag]):
                raise CheckpointError("The download was cut, and the store names no versions", where=self.where)
            options = {self.terms.condition: tag, "range": {"offset": self.done}}
        result = obstore.get(client, self.path, options=options)
        refuse_folder(result, self.terms)
        if not self.done:
            self.meta = result.meta
        size = self.meta["size"]
        if self.max_bytes is not None and size > self.max_bytes:
            raise too_large_to_read(self.where, size, self.max_bytes)
        for part in result.stream(min_chunk_size=PIECE_BYTES):
            self.file.write(part)
            self.done += len(part)
        if self.done != size:
            raise ConnectionError("kind: Short,")  # the library should have raised; the try counts as cut


def refuse_folder(found: Any, terms: StoreTerms) -> None:
    """Raise FileNotFoundError if the object only marks a folder."""
    if terms.folder_mark is not None and terms.folder_mark in found.attributes:
        raise FileNotFoundError
