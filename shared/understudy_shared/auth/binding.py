"""Rules for listening beyond loopback: without credentials, or without TLS, only by an explicit setting (pure)."""

from __future__ import annotations

from enum import StrEnum
from ipaddress import ip_address
from typing import NamedTuple

from understudy_shared.base.errors import SettingsError


class Exposure(StrEnum):
    """An exposure to other machines that `insecure_bind` allows. The text is for people."""

    UNGUARDED = "it asks for no credential"
    IN_PLAIN = "credentials come to it without TLS"


class Guard(NamedTuple):
    """The protection of a service's port.

    `asks`: the service answers no unknown client. `takes_credentials`: keys, tokens or the cluster's key are sent to
    it. `is_encrypted`: the port speaks TLS, or a setting says that something in front of it does.
    """

    asks: bool
    takes_credentials: bool
    is_encrypted: bool


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address. A name that is not localhost may mean any."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def exposure_of(host: str, guard: Guard, *, insecure_bind: bool) -> Exposure | None:
    """Return what is open to other machines; None: nothing. Raises SettingsError unless `insecure_bind` allows it."""
    exposure = None if is_loopback(host) else _exposure(guard)
    if exposure is None or insecure_bind:
        return exposure
    where = host or "every interface"
    if exposure is Exposure.UNGUARDED:
        raise SettingsError(
            f"other machines reach {where}, and it asks for no credential",
            where="host",
            fix="Give --credentials-file (understudy keys new writes one), or listen on 127.0.0.1. Where the network "
            "keeps strangers out: --insecure-bind, or UNDERSTUDY_INSECURE_BIND=true",
        )
    raise SettingsError(
        f"other machines reach {where}, and credentials would come to it without TLS, readable on the way",
        where="host",
        fix="Give --tls-cert-file and --tls-key-file, or listen on 127.0.0.1. Where an ingress, a proxy or a mesh ends "
        "TLS in front of this port: --external-tls-termination, or UNDERSTUDY_EXTERNAL_TLS_TERMINATION=true. Where "
        "no stranger can listen: --insecure-bind",
    )


def _exposure(guard: Guard) -> Exposure | None:
    if not guard.asks:
        return Exposure.UNGUARDED
    return Exposure.IN_PLAIN if guard.takes_credentials and not guard.is_encrypted else None
