"""A node's settings; `understudy_shared.base.service_settings` says where they come from."""

from __future__ import annotations

import hashlib
import os
import warnings
from pathlib import Path

from pydantic import model_validator

from understudy_shared.base.masking import masked_location
from understudy_shared.base.renamed import resolve
from understudy_shared.server.settings import HttpServiceSettings
from understudy_shared.settings.services import NodeFields


class NodeSettings(NodeFields, HttpServiceSettings):
    """The settings of `understudy serve`."""

    @model_validator(mode="after")
    def _new_cache_name_wins(self) -> NodeSettings:
        given = self.statestore_cache_max_bytes if "statestore_cache_max_bytes" in self.model_fields_set else None
        size_bytes, warning = resolve(
            "statestore_cache_max_bytes", given, "cache_max_bytes_buffering", self.cache_max_bytes_buffering
        )
        if warning is not None:
            warnings.warn(warning, DeprecationWarning, stacklevel=2)
        if size_bytes is not None:
            object.__setattr__(self, "statestore_cache_max_bytes", size_bytes)
        return self

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
