"""The file of credentials: roles with their grants, and keys by their digests. The operator writes it, in TOML.

    [roles.support]
    grants = [
      {stores = ["aircraft"], actions = ["point", "scan"]},
      {stores = ["balances"], actions = ["point"], key_prefix = ["tenant-7"]},
      {stores = ["*"], actions = ["monitor"], applications = ["orders-*"]},
    ]

    [[keys]]
    id = "0123456789abcdef"
    principal = "dashboard"
    roles = ["support"]
    sha256 = "..."
    expires_at = 2027-02-20T00:00:00Z

    [issuers.corp]
    issuer = "https://login.example.com/"
    audience = ["understudy"]
    keys_url = "https://login.example.com/keys"
    roles_claim = "groups"
    roles = {data-readers = ["support"]}

    [limits]
    requests_per_s = 500
    principals = {nightly-export = 50}
    applications = {"orders-*" = 2000}

A principal may have two keys at a time, so that one replaces the other without a pause. An operator maps an issuer's
claims to roles. A claim that is missing, or of another type than expected, grants nothing.

Edits append a key to the file, or cut one out. The rest stays as the operator wrote it.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, NamedTuple
from urllib.parse import urlsplit

import orjson
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from understudy_shared.auth.presented import KEY_ID, ApiKey, NewKey
from understudy_shared.auth.principals import (
    EVERY,
    EVERY_STORE,
    OF_KEYS,
    OF_STORES,
    OF_THE_SERVICE,
    Action,
    Grant,
    Principal,
)
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.extras import install_fix
from understudy_shared.base.files import alone_in, replace_file
from understudy_shared.base.texts import clipped, did_you_mean
from understudy_shared.http.opener import is_loopback

MAX_ROLE_VALUES = 1000
"""Number of roles or groups that are read from a claim. Further ones are ignored."""

MAX_CLAIM_CHARS = 256


MAX_KEYS = 10_000
"""Limit on the keys, each about 200 bytes. A key is for a program, not for each of its users."""

MAX_PREFIX_COLUMNS = 16

_EVERYWHERE = frozenset({EVERY_STORE})

BUILT_IN: Mapping[str, tuple[Grant, ...]] = {
    "reader": (Grant(OF_STORES, _EVERYWHERE),),
    "monitor": (Grant(frozenset({Action.MONITOR}), _EVERYWHERE),),
    "admin": (Grant(OF_THE_SERVICE, _EVERYWHERE),),
}
"""Roles that every file has."""

MAX_ISSUERS = 8
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Algorithms that sign with a private key. With a shared secret, every verifier could make tokens itself."""

_Rate = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
_IssuerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
_Name = Annotated[str, Field(min_length=1, max_length=256)]
_Pattern = Annotated[str, Field(pattern=r"^[^/\x00-\x1f\x7f]{1,256}$")]
"""A pattern of ids of applications: `*` stands for any characters."""

_Patterns = Annotated[list[_Pattern], Field(min_length=1, max_length=100)]
_Long = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class CredentialsError(SettingsError):
    """A file of credentials, or of the cluster's secret, cannot be used."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class RoleGrant(_Part):
    """A grant as the file says it."""

    stores: Annotated[list[_Name], Field(min_length=1, max_length=1000)]
    actions: Annotated[list[Action], Field(min_length=1)]
    key_prefix: Annotated[list[bool | _Long | str], Field(max_length=MAX_PREFIX_COLUMNS)] = []
    applications: _Patterns | None = None
    """Patterns of the applications in which it holds; None: in every application."""


class RoleEntry(_Part):
    grants: list[RoleGrant]


class StoredKey(_Part):
    """A key as the file stores it."""

    id: Annotated[str, Field(pattern=rf"^{KEY_ID.pattern}$")]
    principal: _Name
    roles: Annotated[list[_Name], Field(min_length=1, max_length=100)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    created_at: AwareDatetime | None = None
    expires_at: AwareDatetime | None = None


class StoredClaimGrant(_Part):
    """A grant to each token of an issuer: on keys that begin with the values of these claims."""

    stores: Annotated[list[_Name], Field(min_length=1, max_length=1000)]
    actions: Annotated[list[Literal[Action.POINT]], Field(min_length=1, max_length=1)]
    key_prefix_claims: Annotated[list[_Name], Field(min_length=1, max_length=MAX_PREFIX_COLUMNS)]
    applications: _Patterns | None = None


class StoredIssuer(_Part):
    """An issuer of tokens as the file stores it."""

    issuer: _Name
    audience: Annotated[list[_Name], Field(min_length=1, max_length=20)]
    keys_url: Annotated[str, Field(max_length=2048)] = ""
    keys_file: Annotated[str, Field(max_length=4096)] = ""
    algorithms: Annotated[list[Algorithm], Field(min_length=1)] = ["RS256", "ES256"]
    leeway_s: Annotated[float, Field(ge=0, le=120, allow_inf_nan=False)] = 30.0
    """Allowed difference between clocks, at the end and the beginning of a token."""
    principal_claim: _Name = "sub"
    roles_claim: _Name | Annotated[list[_Name], Field(min_length=1, max_length=8)] = []
    roles: dict[_Name, list[_Name]] = {}
    grants: Annotated[list[StoredClaimGrant], Field(max_length=100)] = []


@dataclass(frozen=True, slots=True)
class Issuer:
    """A trusted issuer. `name` is the operator's name for it; `roles` the grants for each value of the roles claim."""

    name: str
    stored: StoredIssuer
    roles: Mapping[str, tuple[Grant, ...]]

    @property
    def key_source(self) -> str:
        """The URL of its key set, or the path of a file with it."""
        return self.stored.keys_url or self.stored.keys_file

    def principal_of(self, claims: Mapping[str, object]) -> Principal | None:
        """Return the principal of a valid token's claims; None if they name no principal."""
        who = claims.get(self.stored.principal_claim)
        if not isinstance(who, str) or not 0 < len(who) <= MAX_CLAIM_CHARS:
            return None
        granted = [grant for value in self._roles_in(claims) for grant in self.roles.get(value, ())]
        granted += [grant for each in self.stored.grants for grant in _granted(each, claims)]
        return Principal(f"{self.name}:{who}", dict.fromkeys(granted))

    def _roles_in(self, claims: Mapping[str, object]) -> list[str]:
        path = self.stored.roles_claim
        if not path:
            return []
        found: object = claims
        for member in [path] if isinstance(path, str) else path:
            found = found.get(member) if isinstance(found, Mapping) else None
        if isinstance(found, str):
            return found.split(" ")[:MAX_ROLE_VALUES]  # `scope` separates its values by spaces (RFC 8693)
        return [value for value in found[:MAX_ROLE_VALUES] if isinstance(value, str)] if isinstance(found, list) else []


def _granted(grant: StoredClaimGrant, claims: Mapping[str, object]) -> Iterator[Grant]:
    """Yield the grant with the values of the claims, if each of them has one."""
    values = [_json_of(claims.get(name)) for name in grant.key_prefix_claims]
    if all(values):
        yield Grant(frozenset(grant.actions), frozenset(grant.stores), tuple(values), _patterns(grant.applications))


def _json_of(value: object) -> bytes:
    """Return a text, a whole number or a boolean as JSON; empty for values that no key can hold."""
    is_fit = isinstance(value, str) and len(value) <= MAX_CLAIM_CHARS
    is_fit = is_fit or (isinstance(value, int) and -(2**63) <= value < 2**63)
    try:
        return orjson.dumps(value) if is_fit else b""
    except orjson.JSONEncodeError:  # a lone surrogate
        return b""


class StoredLimits(_Part):
    """Limits on the requests of principals and to applications, in each process of a service."""

    requests_per_s: _Rate | None = None
    burst_s: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 2.0
    principals: Annotated[dict[_Name, _Rate], Field(max_length=MAX_KEYS)] = {}
    applications: Annotated[dict[_Pattern, _Rate], Field(max_length=1000)] = {}
    """Requests a second to each application that fits a pattern. The first pattern that fits counts."""

    @property
    def is_on(self) -> bool:
        return self.requests_per_s is not None or bool(self.principals) or bool(self.applications)


class Credentials(NamedTuple):
    """The content of a file: its keys by id, and its issuers by the `iss` of their tokens."""

    keys: dict[str, ApiKey]
    issuers: dict[str, Issuer]
    limits: StoredLimits


class CredentialsFile(_Part):
    """The whole file."""

    roles: dict[_Name, RoleEntry] = {}
    issuers: Annotated[dict[_IssuerName, StoredIssuer], Field(max_length=MAX_ISSUERS)] = {}
    keys: Annotated[list[StoredKey], Field(max_length=MAX_KEYS)] = []
    limits: StoredLimits = StoredLimits()


def parse_credentials(data: bytes) -> Credentials:
    """Parse a file. Raises CredentialsError with the fault and its place."""
    file = parse_file(data)
    grants = {**BUILT_IN, **{name: _grants(name, role) for name, role in file.roles.items()}}
    found: dict[str, ApiKey] = {}
    for key in file.keys:
        where = f"key {key.id}"
        if key.id in found:
            raise CredentialsError("two keys have one id", where=where, fix="Remove one: understudy keys revoke")
        principal = Principal(key.principal, _grants_of(key.roles, grants, where))
        expires_s = math.inf if key.expires_at is None else key.expires_at.timestamp()
        found[key.id] = ApiKey(key.id, bytes.fromhex(key.sha256), principal, expires_s)
    issuers = [_issuer(name, issuer, grants) for name, issuer in file.issuers.items()]
    by_issuer = {each.stored.issuer: each for each in issuers}
    if len(by_issuer) < len(issuers):
        raise CredentialsError("two issuers have one name in their tokens", where="issuers", fix="Remove one")
    return Credentials(found, by_issuer, file.limits)


def _grants_of(roles: Iterable[str], grants: Mapping[str, tuple[Grant, ...]], where: str) -> tuple[Grant, ...]:
    for role in roles:
        if role not in grants:
            fix = f"{did_you_mean(role, grants)}Roles: {', '.join(grants)}"
            raise CredentialsError(f"there is no role {clipped(role)}", where=where, fix=fix)
    return tuple([grant for role in roles for grant in grants[role]])


def _issuer(name: str, stored: StoredIssuer, grants: Mapping[str, tuple[Grant, ...]]) -> Issuer:
    where = f"issuer {name}"
    if find_spec("jwt") is None or find_spec("cryptography") is None:
        raise CredentialsError("tokens need the extra jwt", where=where, fix=install_fix("jwt"))
    if bool(stored.keys_url) == bool(stored.keys_file):
        what = "the keys of an issuer come from keys_url or from keys_file"
        raise CredentialsError(what, where=where, fix="Give one of them")
    if stored.keys_url:
        _refuse_insecure(stored.keys_url, where)
    if stored.roles and not stored.roles_claim:
        raise CredentialsError("roles are given, and no roles_claim", where=where, fix='Such as roles_claim = "groups"')
    return Issuer(name, stored, {value: _grants_of(roles, grants, where) for value, roles in stored.roles.items()})


def _patterns(stored: Collection[str] | None) -> frozenset[str]:
    """Return the patterns of a grant; it is empty for a grant that holds in every application."""
    return frozenset() if stored is None or EVERY in stored else frozenset(stored)


def _refuse_insecure(url: str, where: str) -> None:
    """Refuse a URL without TLS, except for loopback: a man in the middle could replace the keys and sign tokens."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        is_secure = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
    except ValueError:
        host, is_secure = "", False
    if not (host and is_secure) or "@" in parts.netloc:
        raise CredentialsError("keys_url is not https://HOST/...", where=where, fix="Give an https URL without a login")


def parse_file(data: bytes) -> CredentialsFile:
    """Parse the file without resolving roles. Raises CredentialsError if it is not TOML, or has another form."""
    try:
        return CredentialsFile.model_validate(tomllib.loads(data.decode()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CredentialsError(f"the credentials are not TOML ({error})", fix=_FIX) from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise CredentialsError(f"the credentials have another form: {first['msg']}", where=place, fix=_FIX) from None


_FIX = "understudy keys new writes a key; docs/security.md has the form of the file"


def _grants(name: str, role: RoleEntry) -> tuple[Grant, ...]:
    where = f"role {clipped(name)}"
    if name in BUILT_IN:
        raise CredentialsError(
            "this role is built in", where=where, fix=f"Choose another name than {', '.join(BUILT_IN)}"
        )
    return tuple([_grant(where, grant) for grant in role.grants])


def _grant(where: str, grant: RoleGrant) -> Grant:
    actions = frozenset(grant.actions)
    if actions & OF_THE_SERVICE and grant.stores != [EVERY_STORE]:
        what = "monitor and admin are of the whole service, not of a store"
        raise CredentialsError(what, where=where, fix='Give them a grant of their own, with stores = ["*"]')
    if grant.key_prefix and not actions <= OF_KEYS:
        what = "a key_prefix is possible for the actions point, scan, export and watch only"
        fix = 'Give these keys a grant of their own, with actions = ["point", "scan"]'
        raise CredentialsError(what, where=where, fix=fix)
    prefix = tuple([orjson.dumps(value) for value in grant.key_prefix])
    return Grant(actions, frozenset(grant.stores), prefix, _patterns(grant.applications))


_HEAD = "# Understudy's credentials. docs/security.md says what stands here; understudy keys writes it.\n"
_KEY_HEAD = "[[keys]]"
_IS_KEY = re.compile(r"(?m)^\[\[keys\]\]")


def stored_keys(path: Path) -> list[StoredKey]:
    """Read the keys of a file, in its order. Raises CredentialsError."""
    return parse_file(_bytes_of(path)).keys


def add_key(
    path: Path, key: NewKey, *, principal: str, roles: Sequence[str], now: datetime, expires_at: datetime | None
) -> None:
    """Append a key's digest to a file, which is created if it does not exist. Raises CredentialsError."""
    times = {"created_at": now, **({} if expires_at is None else {"expires_at": expires_at})}
    lines = [
        _KEY_HEAD,
        f"id = {_toml_text(key.key_id)}",
        f"principal = {_toml_text(principal)}",
        f"roles = [{', '.join(map(_toml_text, roles))}]",
        f"sha256 = {_toml_text(key.sha256)}",
        *(f"{name} = {time.isoformat(timespec='seconds')}" for name, time in times.items()),
    ]

    def added(text: str) -> str:
        return f"{text.rstrip()}\n\n{chr(10).join(lines)}\n".lstrip()

    _change(path, added, may_be_new=True)


def revoke_key(path: Path, key_id: str) -> None:
    """Cut a key out of a file. Raises CredentialsError if the file lacks it."""

    def without(text: str) -> str:
        before = parse_file(text.encode()).keys
        if key_id not in {key.id for key in before}:
            known = ", ".join(key.id for key in before) or "none"
            raise CredentialsError(f"there is no key {key_id!r}", where=str(path), fix=f"Keys: {known}")
        parts = list(tables_of(text))
        at = [key.id for key in before].index(key_id)
        keys = [number for number, part in enumerate(parts) if _IS_KEY.search(part)]
        if len(keys) != len(before):
            raise _by_hand(path)
        left = "".join(part for number, part in enumerate(parts) if number != keys[at])
        if parse_file(left.encode()).keys != [key for key in before if key.id != key_id]:
            raise _by_hand(path)
        return left

    _change(path, without)


def _by_hand(path: Path) -> CredentialsError:
    fix = "Remove the key by hand, with its whole table"
    return CredentialsError("the keys are not written as tables of their own", where=str(path), fix=fix)


def tables_of(text: str) -> Iterator[str]:
    """Yield the text in pieces: each is a table, with the comment right above it."""
    piece: list[str] = []
    for line in text.splitlines(keepends=True):
        if line.startswith("["):
            end = len(piece)
            while end and piece[end - 1].startswith("#"):
                end -= 1
            yield "".join(piece[:end])
            piece = piece[end:]
        piece.append(line)
    yield "".join(piece)


def _change(path: Path, changed: Callable[[str], str], *, may_be_new: bool = False) -> None:
    """Replace a file by its changed text, unless services would refuse the result."""
    try:
        with alone_in(path.absolute().parent):
            is_new = may_be_new and not path.exists()
            text = changed(_HEAD if is_new else _bytes_of(path).decode())
            parse_credentials(text.encode())
            replace_file(path, text)
    except OSError as error:
        what = f"the file cannot be written: {error.strerror or error}"
        raise CredentialsError(what, where=str(path), fix="Check the path and who may write there") from None


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        what = f"the file cannot be read: {error.strerror or error}"
        raise CredentialsError(what, where=str(path), fix="Check the path; understudy keys new makes a file") from None


def _toml_text(value: str) -> str:
    """Write a text as TOML: JSON's form is valid, except for DEL."""
    return orjson.dumps(value).decode().replace("\x7f", "\\u007f")
