"""Credentials for services under test: keys by the name of their principal, in a file like an operator's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.auth.credentials import add_key, revoke_key
from understudy_shared.auth.presented import NewKey, new_key

WRONG = "usk_" + "0" * 16 + "_" + "A" * 43
"""A key of the right form that no service knows."""


def peer_key(identity: ClusterIdentity) -> str:
    """The key that a service shows its peers."""
    return identity.header.decode().rpartition("Bearer ")[2].strip()


class Keys(Mapping[str, str]):
    """The keys of a file of credentials, by name of their principal."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._keys: dict[str, NewKey] = {}

    def role(self, name: str, *grants: str) -> None:
        """Write a role, its grants as TOML."""
        text = self.path.read_text() if self.path.exists() else ""
        self.path.write_text(f"{text}\n[roles.{name}]\ngrants = [{', '.join(grants)}]\n")

    def add(self, name: str, *roles: str, expires_at: datetime | None = None) -> str:
        """Make a key, and return it."""
        key = self._keys[name] = new_key()
        add_key(self.path, key, principal=name, roles=roles, now=datetime.now(UTC), expires_at=expires_at)
        return key.text

    def revoke(self, name: str) -> None:
        revoke_key(self.path, self._keys[name].key_id)

    def __getitem__(self, name: str) -> str:
        return self._keys[name].text

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def bearer(key: str) -> tuple[bytes, bytes]:
    """The header that shows a key."""
    return b"authorization", f"Bearer {key}".encode()
