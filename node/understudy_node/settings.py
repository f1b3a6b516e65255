"""The settings of a node's process, and the settings of each application derived from them.

A process of one application gets its checkpoint; one of several gets a list or a file of them, or roots below which
queries announce theirs. `understudy_shared.base.service_settings` says where settings come from.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from pydantic import model_validator

from understudy_shared.auth.access import Access
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.masking import masked_location
from understudy_shared.base.texts import renamed_option
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.settings import BusSettings
from understudy_shared.cluster.without_bus import parse_seeds
from understudy_shared.fleet.announced_applications import CheckpointRoot, parse_roots
from understudy_shared.fleet.applications_file import FLEET, ApplicationSpec, require_distinct, require_id
from understudy_shared.server.settings import HttpServiceSettings
from understudy_shared.settings import AnnouncedFields, ClusterNodeFields, FleetFields, NodeFields

MAX_NAME_BYTES = 200
"""Longest name of a folder; file systems allow 255."""

ALL_INTERFACES = frozenset({"0.0.0.0", "::"})  # noqa: S104  # compared with, not bound to


class NodeSettings(FleetFields, NodeFields, HttpServiceSettings):
    """The settings of `understudy serve`."""

    checkpoints: tuple[str, ...] = ()
    """Checkpoints, when the command names several."""

    @model_validator(mode="before")
    @classmethod
    def _fleet_has_no_checkpoint(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Require a checkpoint of a process of one application only."""
        is_fleet = given.get("applications") is not None or given.get("checkpoints") or given.get("checkpoint_root")
        return {"checkpoint": "", **given} if is_fleet else given

    @model_validator(mode="after")
    def _new_cache_name_wins(self) -> NodeSettings:
        given = self.statestore_cache_max_bytes if "statestore_cache_max_bytes" in self.model_fields_set else None
        size_bytes, warning = renamed_option(
            "statestore_cache_max_bytes", given, "cache_max_bytes_buffering", self.cache_max_bytes_buffering
        )
        if warning is not None:
            warnings.warn(warning, DeprecationWarning, stacklevel=2)
        if size_bytes is not None:
            object.__setattr__(self, "statestore_cache_max_bytes", size_bytes)
        return self

    # ---- the process

    @property
    def is_fleet(self) -> bool:
        return self.applications is not None or len(self.checkpoints) > 1

    def require_usable(self) -> None:
        """Raise SettingsError for settings that do not go together."""
        for name in ("checkpoint", "application_id", "aliases") if self.is_fleet else ():
            if getattr(self, name):
                raise SettingsError(
                    f"{name} is a setting of one application, and there are several",
                    where=name,
                    fix="Write it below [[applications]] in the file of --applications",
                )

    def own_access(self) -> Access:
        return self.access(FLEET if self.is_fleet else self.application, self.host, is_node=True)

    def address(self, port: int) -> HostInfo:
        """Return where others reach the process, which listens at `port`."""
        return HostInfo(self.host, port)

    def named(self) -> tuple[ApplicationSpec, ...]:
        """Return the applications that the command names. Raises SettingsError for two with one id or checkpoint."""
        settings = [NodeSettings.model_construct(checkpoint=each, application_id="") for each in self.checkpoints]
        specs = tuple(
            [ApplicationSpec(id=require_id(each.application), checkpoint=each.checkpoint) for each in settings]
        )
        try:
            require_distinct(specs)
        except SettingsError as error:
            fix = "Write a file of applications with an id for each, and give it with --applications"
            raise SettingsError(error.what, where="CHECKPOINT", fix=fix) from None
        return specs

    # ---- one application

    def within(self, spec: ApplicationSpec) -> Self:
        folder = {} if self.data_dir is None else {"data_dir": self.data_dir / _folder_of(spec.id)}
        return self.model_copy(update={**spec.overrides(), **folder})

    @property
    def application(self) -> str:
        """The application id, given or derived."""
        return self.application_id or masked_location(self.checkpoint.rstrip("/")).rpartition("/")[2] or "application"

    @property
    def data_directory(self) -> Path:
        """The folder of local copies: as set, else `~/.cache/understudy/<name>-<hash of the checkpoint's location>`."""
        if self.data_dir is not None:
            return self.data_dir.absolute()
        location = self.checkpoint if "://" in self.checkpoint else str(Path(self.checkpoint).absolute())
        digest = hashlib.sha256(location.encode()).hexdigest()[:12]
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "understudy" / f"{self.application}-{digest}"


class ClusterNodeSettings(AnnouncedFields, ClusterNodeFields, BusSettings, NodeSettings):
    """The settings of `understudy node`."""

    @property
    def is_fleet(self) -> bool:
        return super().is_fleet or bool(self.checkpoint_root)

    def require_usable(self) -> None:
        """Refuse an advertised host that is every interface, too, and malformed seeds."""
        if self.advertised_host in ALL_INTERFACES:
            raise SettingsError(
                f"{self.advertised_host} is every interface, not an address that routers can connect to",
                where="advertise_host",
                fix="Give the name or address that reaches this node with --advertise-host",
            )
        parse_seeds(self.seed)
        given = self.model_fields_set & AnnouncedFields.model_fields.keys()
        for name in () if self.is_fleet else sorted(name for name in given if getattr(self, name)):
            raise SettingsError(
                f"{name} is a setting of several applications, and there is one",
                where=name,
                fix="Leave it out, or say with --checkpoint-root where the checkpoints of announced queries lie",
            )
        super().require_usable()

    def own_access(self) -> Access:
        """Refuse, too, that routers could not authenticate: a node that refuses its routers looks failed."""
        has_peers = self.cluster_secret_file is not None or self.peer_ca_file is not None
        if self.credentials_file is not None and not has_peers:
            raise SettingsError(
                "there are credentials for readers, but routers have no credentials",
                where="cluster_secret_file",
                fix="Give all nodes and routers of the application the same --cluster-secret-file, or certificates",
            )
        if self.tls_cert_file is not None and self.peer_ca_file is None:
            raise SettingsError(
                "this port speaks TLS, but no authority signs for routers: they could not ask this node",
                where="peer_ca_file",
                fix="Give --peer-ca-file to the nodes and routers of the application, and each of them a certificate",
            )
        return super().own_access()

    @property
    def roots(self) -> tuple[CheckpointRoot, ...]:
        return parse_roots(self.checkpoint_root)

    @property
    def advertised_host(self) -> str:
        return self.advertise_host or self.host

    def address(self, port: int) -> HostInfo:
        return HostInfo(self.advertised_host, self.advertise_port or port)

    @property
    def data_directory(self) -> Path:
        """The folder of local copies. Its default has the node id, so that nodes on one machine do not share it."""
        if self.data_dir is not None:
            return self.data_dir.absolute()
        shared = super().data_directory
        node = quote(self.node_id or f"{self.advertised_host}-{self.advertise_port or self.port}", safe="")
        if len(f"{shared.name}-{node}".encode()) > MAX_NAME_BYTES:
            node = hashlib.sha256(node.encode()).hexdigest()[:16]
        return shared.with_name(f"{shared.name}-{node}")


def _folder_of(application_id: str) -> str:
    name = quote(application_id, safe=" ")
    return name if len(name) <= MAX_NAME_BYTES else hashlib.sha256(name.encode()).hexdigest()
