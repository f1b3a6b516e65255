"""The settings of every service that uses the bus: which Redis, how to reach it, and how messages are signed."""

from __future__ import annotations

from understudy_shared.base.service_settings import ServiceSettings
from understudy_shared.bus.key_file import message_auth
from understudy_shared.bus.message_auth import MessageAuth
from understudy_shared.bus.redis_url import with_password_file, with_tls_files
from understudy_shared.settings.common import BusFields


class BusSettings(BusFields, ServiceSettings):
    """The bus settings that nodes and routers have in common."""

    @property
    def redis_url(self) -> str:
        """The URL with all of these settings in it: pass it to masked() before showing it. Raises SettingsError."""
        url = with_password_file(self.redis, self.redis_password_file)
        return with_tls_files(
            url, ca_file=self.redis_ca_file, cert_file=self.redis_cert_file, key_file=self.redis_key_file
        )

    def message_auth(self, application_id: str, *, sender: str) -> MessageAuth:
        """Return the signatures of this process, named `sender`. Raises SettingsError for an unusable key file."""
        return message_auth(
            application_id, self.gossip_key_file, accept_unsigned=self.gossip_accept_unsigned, sender=sender
        )
