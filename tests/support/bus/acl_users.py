"""The ACL users of deploy/redis/users.acl at a server of a test, and the URLs by which each role comes in."""

from __future__ import annotations

import hashlib
import secrets

from tests.support.bus.redis_server import RedisServer
from tests.support.repository import ROOT

USERS_FILE = ROOT / "deploy" / "redis" / "users.acl"
ROLES = ("node", "router", "pipeline")


def users_text(application_id: str, passwords: dict[str, str]) -> str:
    """The file with its placeholders replaced, as an operator does it."""
    text = USERS_FILE.read_text().replace("APPLICATION", application_id)
    for role, password in passwords.items():
        text = text.replace(f"{role.upper()}_PASSWORD_SHA256", hashlib.sha256(password.encode()).hexdigest())
    return text


def new_passwords() -> dict[str, str]:
    """One for each role."""
    return {role: secrets.token_hex(16) for role in ROLES}


def rules_of(application_id: str, role: str, password: str = "") -> list[str]:
    """The words of a role's line, without `user NAME`."""
    for line in users_text(application_id, {role: password}).splitlines():
        _, name, *rules = line.split()
        if name == f"{application_id}-{role}":
            return rules
    raise AssertionError(f"no user for {role}")


def give_users(server: RedisServer, application_id: str) -> dict[str, str]:
    """Make the users at a server, beside its default one: the URL for each role."""
    passwords = new_passwords()
    for role, password in passwords.items():
        server.command("ACL", "SETUSER", f"{application_id}-{role}", *rules_of(application_id, role, password))
    server.command("ACL", "LOG", "RESET")
    return {
        role: server.url.replace("unix://", f"unix://{application_id}-{role}:{password}@")
        for role, password in passwords.items()
    }
