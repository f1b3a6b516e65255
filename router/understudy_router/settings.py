"""A router's settings; `understudy_shared.base.service_settings` says where they come from."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path
from urllib.parse import quote

from understudy_shared.bus.settings import BusSettings
from understudy_shared.server.settings import HttpServiceSettings
from understudy_shared.settings.services import RouterFields

MAX_NAME_BYTES = 200
"""Most bytes of a folder's name: file systems allow 255."""


class RouterSettings(RouterFields, BusSettings, HttpServiceSettings):
    """The settings of `understudy router`."""

    @property
    def name(self) -> str:
        """The name of this router in heartbeats and logs."""
        return self.router_id or socket.gethostname()

    @property
    def data_directory(self) -> Path:
        """The folder of the remembered documents: as set, else `~/.cache/understudy/router-<application>`, quoted as in
        a URL.
        """
        if self.data_dir is not None:
            return self.data_dir.absolute()
        name = f"router-{quote(self.application_id, safe='')}"
        if len(name.encode()) > MAX_NAME_BYTES:
            name = f"router-{hashlib.sha256(self.application_id.encode()).hexdigest()}"
        # A user without a home folder has nowhere to write; the first attempt to remember something logs that.
        home = Path(os.environ.get("HOME") or "/")
        return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "understudy" / name
