"""Which addresses a service may listen on without asking for credentials (pure)."""

from __future__ import annotations

from ipaddress import ip_address

from understudy_shared.errors import SettingsError


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address. A name that is not localhost may mean any."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def require_guarded(host: str, *, is_guarded: bool, insecure_bind: bool) -> bool:
    """Whether strangers may reach the service and are asked for nothing. Raises SettingsError unless that was said."""
    if is_guarded or is_loopback(host):
        return False
    if not insecure_bind:
        raise SettingsError(
            f"other machines reach {host or 'every interface'}, and nobody is asked for a credential",
            where="host",
            fix="Give --credentials-file (understudy keys new writes one), or listen on 127.0.0.1. Where the network "
            "keeps strangers out: --insecure-bind, or UNDERSTUDY_INSECURE_BIND=true",
        )
    return True
