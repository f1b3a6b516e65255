"""The settings of every service that answers over HTTP: the limits of its connections, and its access control."""

from __future__ import annotations

from understudy_shared.auth.access import Access, Guard, exposure_of
from understudy_shared.auth.cluster_secret import ClusterIdentity, parse_cluster_secrets
from understudy_shared.auth.credentials import parse_credentials
from understudy_shared.base.files import WatchedFile
from understudy_shared.base.service_settings import ServiceSettings
from understudy_shared.http.edge import parse_root_path
from understudy_shared.http.origins import Cors, parse_origins
from understudy_shared.server.connection_guard import ConnectionGuard, default_limit_bytes, file_limit
from understudy_shared.server.connection_limits import ConnectionLimits, connections_allowed
from understudy_shared.settings import HttpFields, ServiceFields
from understudy_shared.tls.certificates import tls_plan
from understudy_shared.tls.service_tls import ServiceTls
from understudy_shared.tls.trouble import PeerRole


class HttpServiceSettings(ServiceFields, HttpFields, ServiceSettings):
    """The HTTP settings that nodes and routers have in common."""

    def access(self, application_id: str, host: str, *, is_node: bool) -> Access:
        """Return the access control of the service. Reads the files that the settings name.

        Raises SettingsError for an unusable file, for an address that other machines reach without access control or to
        which credentials would be sent in plain text, and for a malformed origin or prefix.
        """
        credentials = None if self.credentials_file is None else WatchedFile(self.credentials_file, parse_credentials)
        path, origins = self.cluster_secret_file, parse_origins(self.cors_origins)
        secret = None if path is None else WatchedFile(path, parse_cluster_secrets)
        tls = self.service_tls(application_id, is_node=is_node)
        has_peers = secret is not None or (tls is not None and tls.asks_peers)
        guard = Guard(
            asks=credentials is not None or (is_node and has_peers),
            takes_credentials=credentials is not None or (is_node and secret is not None),
            is_encrypted=self.external_tls_termination or (tls is not None and tls.server is not None),
        )
        return Access(
            credentials=credentials,
            identity=ClusterIdentity(secret, application_id, tls),
            accepts_peers=is_node,
            exposure=exposure_of(host, guard, insecure_bind=self.insecure_bind),
            cors=Cors(origins) if origins else None,
            root_path=parse_root_path(self.root_path),
        )

    def service_tls(self, application_id: str, *, is_node: bool) -> ServiceTls | None:
        """Return the certificates of the service; None without any. Raises SettingsError for unusable files."""
        role = PeerRole.NODE if is_node else PeerRole.ROUTER
        plan = tls_plan(
            application_id,
            role,
            server=(self.tls_cert_file, self.tls_key_file),
            peer=(self.peer_cert_file, self.peer_key_file),
            peer_ca=self.peer_ca_file,
        )
        return None if plan is None else ServiceTls(plan)

    def connection_guard(self) -> ConnectionGuard:
        wanted, reserved = connections_allowed(self.max_connections, file_limit())
        limit_bytes = default_limit_bytes() if self.memory_limit_bytes is None else self.memory_limit_bytes
        return ConnectionGuard(
            ConnectionLimits(
                max_connections=wanted,
                reserved_connections=reserved,
                memory_limit_bytes=limit_bytes,
                header_timeout_ms=self.header_timeout_ms,
                body_timeout_ms=self.body_timeout_ms,
                unread_timeout_ms=self.unread_timeout_ms,
                keep_alive_timeout_ms=self.keep_alive_timeout_ms,
            )
        )


class HttpService:
    """A service that has started, as a progress display sees it."""

    settings: HttpServiceSettings

    @property
    def is_tls(self) -> bool:
        """Whether it listens with TLS."""
        return self.settings.tls_cert_file is not None

    @property
    def wants_keys(self) -> bool:
        """Whether clients must send an API key."""
        return self.settings.credentials_file is not None
