"""The settings of a process that serves several applications, and those of each of them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Self
from urllib.parse import quote

from understudy_node.cluster.settings import ClusterNodeSettings
from understudy_node.settings import NodeSettings
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.service_settings import ServiceSettings
from understudy_shared.base.watched_file import WatchedFile
from understudy_shared.fleet.applications_file import ApplicationSpec, parse_applications, require_distinct
from understudy_shared.fleet.checkpoint_roots import CheckpointRoot, parse_roots
from understudy_shared.fleet.choosing import require_id
from understudy_shared.settings.services import AnnouncedFields, FleetFields

MAX_FOLDER_BYTES = 200


class Asked(FleetFields, ServiceSettings):
    """The settings that show whether a process serves several applications."""

    model_config = ServiceSettings.model_config | {"extra": "ignore"}

    checkpoints: tuple[str, ...] = ()
    """Checkpoints, when the command names several."""

    @property
    def is_fleet(self) -> bool:
        return self.applications is not None or len(self.checkpoints) > 1


class AskedNode(AnnouncedFields, Asked):
    """The settings that show whether a node does."""

    @property
    def is_fleet(self) -> bool:
        return super().is_fleet or bool(self.checkpoint_root)


class _OfMany(NodeSettings):
    """The settings of a process, from which those of each of its applications follow."""

    checkpoint: str = ""
    """The checkpoint of one application; empty in the settings of the process."""

    def within(self, spec: ApplicationSpec) -> Self:
        """Return the settings of one application."""
        folder = {} if self.data_dir is None else {"data_dir": self.data_dir / folder_of(spec.id)}
        return self.model_copy(update={**spec.overrides(), **folder})

    def require_no_other(self) -> None:
        """Raise SettingsError for settings that only one application can have."""
        for name in ("checkpoint", "application_id", "aliases"):
            if getattr(self, name):
                raise SettingsError(
                    f"{name} is a setting of one application, and there are several",
                    where=name,
                    fix="Write it below [[applications]] in the file of --applications",
                )


class ServeFleetSettings(FleetFields, _OfMany):
    """The settings of `understudy serve` with several checkpoints."""

    checkpoints: tuple[str, ...] = ()

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


class NodeFleetSettings(FleetFields, AnnouncedFields, ClusterNodeSettings, _OfMany):
    """The settings of `understudy node` with several applications."""

    checkpoint: str = ""

    @property
    def roots(self) -> tuple[CheckpointRoot, ...]:
        """The roots of announced checkpoints. Raises SettingsError."""
        return parse_roots(self.checkpoint_root)

    def named(self) -> tuple[ApplicationSpec, ...]:
        return ()


def watched_applications(path: Path | None) -> WatchedFile[tuple[ApplicationSpec, ...]] | None:
    """Open the file of applications. Raises SettingsError if it cannot be used."""
    return None if path is None else WatchedFile(path, parse_applications)


def folder_of(application_id: str) -> str:
    """Return the name of an application's folder."""
    name = quote(application_id, safe=" ")
    return name if len(name) <= MAX_FOLDER_BYTES else hashlib.sha256(name.encode()).hexdigest()
