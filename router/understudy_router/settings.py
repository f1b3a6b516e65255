"""A router's settings; `understudy_shared.base.service_settings` says where they come from."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path
from urllib.parse import quote

from pydantic import Field

from understudy_shared.base.service_settings import Port
from understudy_shared.bus.settings import BusSettings
from understudy_shared.http.lookup_requests import DEFAULT_KEY_BYTES, MAX_KEY_BYTES
from understudy_shared.server.settings import HttpServiceSettings

MAX_NAME_BYTES = 200
"""Longest name of a folder: file systems allow 255."""


class RouterSettings(BusSettings, HttpServiceSettings):
    """The settings of `understudy router`."""

    application_id: str = Field(min_length=1, max_length=256)
    """The query whose nodes are asked. A router reads no checkpoint, so there is nothing to derive it from."""

    router_id: str = Field("", max_length=200)
    """What this router is called in reports, logs and metrics; empty: the name of its host."""

    host: str = "127.0.0.1"
    """Address to listen on. A service that listens beyond loopback needs credentials and TLS, or `insecure_bind`."""

    port: Port = 8080
    """0 takes any free port and logs it."""

    hop_timeout_ms: int = Field(1000, ge=10, le=60_000)
    """Longest time a node may take for a hop; then another is asked, if the retry budget allows it. Normal is 1 ms."""

    deadline_ms: int = Field(3000, ge=10, le=600_000)
    """Longest time a lookup may take in all, beyond what the reader asked it to wait: three hops that time out."""

    suspect_after_ms: int = Field(200, ge=10, le=60_000)
    """A node that answers nothing for so long while others do is asked last, and reads in flight to it are rescued."""

    hedge_after_ms: int = Field(50, ge=0, le=60_000)
    """A read that waits for longer than this, or than what is usual (p95), is sent to another replica too; 0: never."""

    retry_percent: int = Field(10, ge=0, le=100)
    """Timeouts, hedges and overload may cost so much more requests per hundred keys asked for."""

    retry_per_s: int = Field(3, ge=0, le=10_000)
    """And so many a second, however few keys are asked for."""

    processes: int = Field(1, ge=1, le=64)
    """Worker processes that share the port, for as many cores. Each is a whole router; limits are divided."""

    seed: str = ""
    """Nodes to ask while Redis is away, and nothing is remembered: host:port, with commas between."""

    data_dir: Path | None = None
    """Where it remembers assignment, nodes and catalogue; by default a folder per application in the user's cache."""

    store_bounds: Path | None = None
    """TOML with the bounds of each store for readers that give none."""

    shutdown_delay_ms: int = Field(500, ge=0, le=600_000)
    """How long it says that it stops, and goes on answering, before it stops."""

    end_expiry_ms: int = Field(10_000, ge=1)
    """A confirmation of the end older than this counts no more: lag is unknown. As the nodes' setting of that name."""

    max_in_flight: int = Field(1024, ge=1)
    """Requests answered at once; one more gets 429."""

    max_key_bytes: int = Field(DEFAULT_KEY_BYTES, ge=1024, le=MAX_KEY_BYTES)
    """Longest key, as Spark encodes it, that readers may ask for. As the nodes' setting of that name."""

    @property
    def name(self) -> str:
        """The name of this router in heartbeats and logs."""
        return self.router_id or socket.gethostname()

    @property
    def data_directory(self) -> Path:
        """Where it keeps what it remembers: as set, else `~/.cache/understudy/router-<application>`, quoted as in a
        URL.
        """
        if self.data_dir is not None:
            return self.data_dir.absolute()
        name = f"router-{quote(self.application_id, safe='')}"
        if len(name.encode()) > MAX_NAME_BYTES:
            name = f"router-{hashlib.sha256(self.application_id.encode()).hexdigest()}"
        # A user without a home folder has nowhere to write; the first attempt to remember something logs that.
        home = Path(os.environ.get("HOME") or "/")
        return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "understudy" / name
