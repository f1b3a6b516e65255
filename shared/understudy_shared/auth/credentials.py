"""The file of credentials (pure): roles with their grants, and keys by their digests. TOML, of the operator's.

    [roles.support]
    grants = [
      {stores = ["aircraft"], actions = ["point", "scan"]},
      {stores = ["balances"], actions = ["point"], key_prefix = ["tenant-7"]},
    ]

    [[keys]]
    id = "0123456789abcdef"
    principal = "dashboard"
    roles = ["support"]
    sha256 = "..."
    expires_at = 2027-02-20T00:00:00Z

A principal may have two keys at a time, so that one replaces the other without a pause.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from typing import Annotated

import orjson
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from understudy_shared.auth.api_keys import KEY_ID, ApiKey
from understudy_shared.auth.principals import EVERY_STORE, OF_STORES, OF_THE_SERVICE, Action, Grant, Principal
from understudy_shared.errors import SettingsError
from understudy_shared.printable import clipped
from understudy_shared.suggest import did_you_mean

MAX_KEYS = 10_000
"""A fifth of a kilobyte each; a key is for a program, not for each of its users."""

MAX_PREFIX_COLUMNS = 16

_EVERYWHERE = frozenset({EVERY_STORE})

BUILT_IN: Mapping[str, tuple[Grant, ...]] = {
    "reader": (Grant(OF_STORES, _EVERYWHERE),),
    "monitor": (Grant(frozenset({Action.MONITOR}), _EVERYWHERE),),
    "admin": (Grant(OF_THE_SERVICE, _EVERYWHERE),),
}
"""Roles that every file has."""

_Name = Annotated[str, Field(min_length=1, max_length=256)]
_Long = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class CredentialsError(SettingsError):
    """A file of credentials, or of the cluster's secret, that cannot be used."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class RoleGrant(_Part):
    """A grant as the file says it."""

    stores: Annotated[list[_Name], Field(min_length=1, max_length=1000)]
    actions: Annotated[list[Action], Field(min_length=1)]
    key_prefix: Annotated[list[bool | _Long | str], Field(max_length=MAX_PREFIX_COLUMNS)] = []


class Role(_Part):
    """What its keys may do."""

    grants: list[RoleGrant]


class StoredKey(_Part):
    """A key as the file keeps it."""

    id: Annotated[str, Field(pattern=rf"^{KEY_ID.pattern}$")]
    principal: _Name
    roles: Annotated[list[_Name], Field(min_length=1, max_length=100)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    created_at: AwareDatetime | None = None
    expires_at: AwareDatetime | None = None


class CredentialsFile(_Part):
    """The whole file."""

    roles: dict[_Name, Role] = {}
    keys: Annotated[list[StoredKey], Field(max_length=MAX_KEYS)] = []


def parse_credentials(data: bytes) -> dict[str, ApiKey]:
    """The keys of a file, by id. Raises CredentialsError: what is wrong, and where."""
    file = parse_file(data)
    grants = {**BUILT_IN, **{name: _grants(name, role) for name, role in file.roles.items()}}
    found: dict[str, ApiKey] = {}
    for key in file.keys:
        where = f"key {key.id}"
        if key.id in found:
            raise CredentialsError("two keys have one id", where=where, fix="Remove one: understudy keys revoke")
        for role in key.roles:
            if role not in grants:
                fix = f"{did_you_mean(role, grants)}Roles: {', '.join(grants)}"
                raise CredentialsError(f"there is no role {clipped(role)}", where=where, fix=fix)
        principal = Principal(key.principal, [grant for role in key.roles for grant in grants[role]])
        expires_s = math.inf if key.expires_at is None else key.expires_at.timestamp()
        found[key.id] = ApiKey(key.id, bytes.fromhex(key.sha256), principal, expires_s)
    return found


def parse_file(data: bytes) -> CredentialsFile:
    """The file as it stands. Raises CredentialsError when it is not TOML, or of another form."""
    try:
        return CredentialsFile.model_validate(tomllib.loads(data.decode()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CredentialsError(f"the credentials are not TOML ({error})", fix=_FIX) from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise CredentialsError(f"the credentials have another form: {first['msg']}", where=place, fix=_FIX) from None


_FIX = "understudy keys new writes a key; docs/security.md has the form of the file"


def _grants(name: str, role: Role) -> tuple[Grant, ...]:
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
    if grant.key_prefix and actions != {Action.POINT}:
        what = "a key_prefix can only be kept for the action point"
        raise CredentialsError(what, where=where, fix='Give these keys a grant of their own, with actions = ["point"]')
    return Grant(actions, frozenset(grant.stores), tuple([orjson.dumps(value) for value in grant.key_prefix]))
