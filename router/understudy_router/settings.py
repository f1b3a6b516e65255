"""A router's settings; `understudy_shared.base.service_settings` says where they come from."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path
from urllib.parse import quote

from pydantic import model_validator

from understudy_shared.auth.access import Access
from understudy_shared.bus.settings import BusSettings
from understudy_shared.fleet.applications_file import FLEET
from understudy_shared.server.settings import HttpServiceSettings
from understudy_shared.settings import RouterFields

MAX_NAME_BYTES = 200
"""Most bytes of a folder's name: file systems allow 255."""


class RouterSettings(RouterFields, BusSettings, HttpServiceSettings):
    """The settings of `understudy router`."""

    @model_validator(mode="after")
    def _require_one(self) -> RouterSettings:
        """Raise ValueError, as pydantic requires, unless one application is named, or patterns of many."""
        if bool(self.application_id) == bool(self.applications):
            raise ValueError("give application_id, for one query, or applications, for many; not both")
        return self

    @property
    def name(self) -> str:
        """The name of this router in heartbeats and logs."""
        return self.router_id or socket.gethostname()

    def own_access(self) -> Access:
        """Return the access control of the process. Raises SettingsError."""
        return self.access(self.application_id or FLEET, self.host, is_node=False)

    @property
    def data_directory(self) -> Path:
        """The folder of the remembered documents: as set, else `~/.cache/understudy/router-<application>`, quoted as in
        a URL.
        """
        if self.data_dir is not None:
            return self.data_dir.absolute()
        name = f"router-{folder_name(self.application_id)}"
        # A user without a home folder has nowhere to write; the first attempt to remember something logs that.
        home = Path(os.environ.get("HOME") or "/")
        return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "understudy" / name

    def within(self, application_id: str) -> RouterSettings:
        """Return the settings of one application of many. Each has a folder of its own."""
        folder = None if self.data_dir is None else self.data_dir / folder_name(application_id)
        return self.model_copy(update={"application_id": application_id, "applications": "", "data_dir": folder})


def folder_name(application_id: str) -> str:
    """Return the name of an application's folder, quoted as in a URL; a hash if that is too long."""
    name = quote(application_id, safe="")
    return name if len(name) < MAX_NAME_BYTES else hashlib.sha256(application_id.encode()).hexdigest()
