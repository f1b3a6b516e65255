"""The settings of every service that uses the bus: which Redis, how it is reached, and whose messages are
believed.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from understudy_shared.base.service_settings import ServiceSettings
from understudy_shared.bus.key_file import message_auth
from understudy_shared.bus.message_auth import MessageAuth
from understudy_shared.bus.redis_url import with_password_file, with_tls_files


class BusSettings(ServiceSettings):
    """What nodes and routers have in common."""

    redis: str = Field(min_length=1)
    """Redis or Valkey, shared by nodes and routers: redis://host:port/db, rediss:// for TLS, unix:///path."""

    redis_password_file: Path | None = None
    """File whose first line is the password of the user in `redis`: command lines are seen by others."""

    redis_ca_file: Path | None = None
    """Certificates in PEM format of the authorities that may sign that of the Redis; by default the system's."""

    redis_cert_file: Path | None = None
    """Certificate in PEM format that this process shows to a Redis that asks for one."""

    redis_key_file: Path | None = None
    """The key of that certificate, if it is not in the same file."""

    gossip_key_file: Path | None = None
    """File with the key that gossip is signed with, and perhaps an older one: without it nothing is signed."""

    gossip_accept_unsigned: bool = False
    """Accept unsigned gossip all the same, while processes get the key one after the other."""

    @property
    def redis_url(self) -> str:
        """The URL with all of that in it: masked() before anybody sees it. Raises SettingsError."""
        url = with_password_file(self.redis, self.redis_password_file)
        return with_tls_files(
            url, ca_file=self.redis_ca_file, cert_file=self.redis_cert_file, key_file=self.redis_key_file
        )

    def message_auth(self, application_id: str, *, sender: str) -> MessageAuth:
        """The signatures of this process, named `sender`. Raises SettingsError for a key file that cannot be used."""
        return message_auth(
            application_id, self.gossip_key_file, accept_unsigned=self.gossip_accept_unsigned, sender=sender
        )
