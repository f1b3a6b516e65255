"""The settings of a node in a cluster, beyond those of `understudy serve`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import quote

from understudy_node.settings import NodeSettings
from understudy_shared.bus.settings import BusSettings
from understudy_shared.settings.services import ClusterNodeFields

MAX_NAME_BYTES = 200
"""Longest name of a folder; file systems allow 255."""


class ClusterNodeSettings(ClusterNodeFields, BusSettings, NodeSettings):
    """The settings of `understudy node`."""

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

    @property
    def advertised_host(self) -> str:
        """The host that other processes connect to."""
        return self.advertise_host or self.host
