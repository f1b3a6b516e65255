"""Issuers of tokens that a service trusts, and the grants that claims of a token give (pure).

The file of credentials names issuers. An operator maps an issuer's claims to roles; a claim that is missing, or of
another type than expected, grants nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import orjson

from understudy_shared.auth.principals import Action, Grant, Principal

MAX_ROLE_VALUES = 1000
"""Limit on the roles or groups of a claim that are looked at."""

MAX_CLAIM_CHARS = 256


@dataclass(frozen=True, slots=True)
class ClaimGrant:
    """A grant whose key prefix comes from claims: each user reads his own keys."""

    actions: frozenset[Action]
    stores: frozenset[str]
    key_prefix_claims: tuple[str, ...]
    applications: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Issuer:
    """One issuer. `name` is ours; `issuer` is the `iss` of its tokens."""

    name: str
    issuer: str
    audience: tuple[str, ...]
    algorithms: tuple[str, ...]
    key_source: str
    """The URL of its key set, or the path of a file with it."""
    leeway_s: float = 30.0
    principal_claim: str = "sub"
    roles_claim: tuple[str, ...] = ()
    """The path to the claim with roles or groups: names of members, outermost first."""
    roles: Mapping[str, tuple[Grant, ...]] = field(default_factory=dict)
    """Grants of each value of that claim."""
    grants: tuple[ClaimGrant, ...] = ()
    """Grants of every token."""

    def principal_of(self, claims: Mapping[str, object]) -> Principal | None:
        """Return the principal of a valid token's claims; None when they name no principal."""
        who = claims.get(self.principal_claim)
        if not isinstance(who, str) or not 0 < len(who) <= MAX_CLAIM_CHARS:
            return None
        granted = [grant for value in self._roles_in(claims) for grant in self.roles.get(value, ())]
        granted += [grant for each in self.grants for grant in _granted(each, claims)]
        return Principal(f"{self.name}:{who}", dict.fromkeys(granted))

    def _roles_in(self, claims: Mapping[str, object]) -> list[str]:
        if not self.roles_claim:
            return []
        found: object = claims
        for member in self.roles_claim:
            found = found.get(member) if isinstance(found, Mapping) else None
        if isinstance(found, str):
            return found.split(" ")[:MAX_ROLE_VALUES]  # `scope` separates its values by spaces (RFC 8693)
        return [value for value in found[:MAX_ROLE_VALUES] if isinstance(value, str)] if isinstance(found, list) else []


def _granted(grant: ClaimGrant, claims: Mapping[str, object]) -> Iterator[Grant]:
    """Yield the grant with the values of the claims, if each of them has one."""
    values = [_json_of(claims.get(name)) for name in grant.key_prefix_claims]
    if all(values):
        yield Grant(grant.actions, grant.stores, tuple(values), grant.applications)


def _json_of(value: object) -> bytes:
    """Return a text, a whole number or a boolean as JSON; empty for values that no key can hold."""
    is_fit = isinstance(value, str) and len(value) <= MAX_CLAIM_CHARS
    is_fit = is_fit or (isinstance(value, int) and -(2**63) <= value < 2**63)
    try:
        return orjson.dumps(value) if is_fit else b""
    except orjson.JSONEncodeError:  # a lone surrogate
        return b""
