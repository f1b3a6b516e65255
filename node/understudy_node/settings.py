"""A node's settings; `understudy_shared.base.service_settings` says where they come from."""

from __future__ import annotations

import hashlib
import os
import warnings
from pathlib import Path

from pydantic import Field, model_validator

from understudy_node.engine.rocksdb_base import DEFAULT_CACHE_BYTES
from understudy_shared.base.masking import masked_location
from understudy_shared.base.renamed import resolve
from understudy_shared.base.service_settings import Bytes, Port
from understudy_shared.http.lookup_requests import DEFAULT_KEY_BYTES, MAX_KEY_BYTES
from understudy_shared.server.settings import HttpServiceSettings


class NodeSettings(HttpServiceSettings):
    """The settings of `understudy serve`."""

    checkpoint: str
    """The query's checkpoint location: a path, a URL of S3, or any that fsspec knows."""

    checkpoint_wait_ms: int | None = Field(None, ge=0)
    """How long to wait for a checkpoint that is not there yet; 0: not at all. None waits without a limit: a query makes
    its checkpoint when it starts, which may be after the node.
    """

    application_id: str = ""
    """Names the query in answers and tokens; by default the last part of the checkpoint's path."""

    host: str = "127.0.0.1"
    """Address to listen on. A service that listens beyond loopback needs credentials and TLS, or `insecure_bind`."""

    port: Port = 8080
    """0 takes any free port and logs it."""

    data_dir: Path | None = None
    """Local copies of the state; by default a folder per checkpoint under the user's cache directory."""

    aliases: Path | None = None
    """TOML with names for stores and columns."""

    store_bounds: Path | None = None
    """TOML with the bounds of each store for readers that give none."""

    lag_refresh_ms: int = Field(1000, ge=1)
    """Longest time between two looks at the commit log (KIP-535 drafted 3,000); shorter while commits arrive."""

    end_expiry_ms: int = Field(10_000, ge=1)
    """A confirmation of the end older than this counts no more: lag is unknown. Ten looks may fail."""

    acceptable_recovery_lag: int = Field(10, ge=0)
    """Versions behind up to which a replica counts as caught up (KIP-441 has 10,000 records; ours are batches)."""

    statestore_cache_max_bytes: Bytes = DEFAULT_CACHE_BYTES
    """One block cache for all stores of the process (KIP-770's default, 10 MiB); 0 disables it."""

    cache_max_bytes_buffering: Bytes | None = None
    """The name that KIP-770 deprecated; used when the new one is not given."""

    overlay_max_bytes: Bytes = 64 * 1024 * 1024
    """Changes since the snapshot that a store partition keeps in memory before they move to a newer base or to disk."""

    workers: int = Field(3, ge=2, le=64)
    """Threads that restore and follow; one of them is always kept free for following."""

    max_in_flight: int = Field(1024, ge=1)
    """Requests answered at once; one more gets 429."""

    max_key_bytes: int = Field(DEFAULT_KEY_BYTES, ge=1024, le=MAX_KEY_BYTES)
    """Longest key, as Spark encodes it, that readers may ask for. As the routers' setting of that name."""

    metrics_max_partitions: int = Field(256, ge=0, le=100_000)
    """Replicas of store partitions with series of their own in /metrics, five each; the rest counts by store alone."""

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
        """Where local copies go: as set, else `~/.cache/understudy/<name>-<hash of the checkpoint's location>`."""
        if self.data_dir is not None:
            return self.data_dir.absolute()
        location = self.checkpoint if "://" in self.checkpoint else str(Path(self.checkpoint).absolute())
        digest = hashlib.sha256(location.encode()).hexdigest()[:12]
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "understudy" / f"{self.application}-{digest}"
