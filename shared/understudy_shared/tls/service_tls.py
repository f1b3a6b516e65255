"""The TLS of one service: the contexts for its new connections, read again when a file changes, and the refusals.

A file that cannot be used changes nothing: the previous certificates stay in use, and the service is degraded by `tls`.
Open connections keep their certificates.
"""

from __future__ import annotations

import logging
import math
import os
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from understudy_shared.base.errors import SettingsError
from understudy_shared.base.throttles import LogThrottle, Reminder
from understudy_shared.tls.certificates import CurrentContext, Lifetime, TlsMaterial, TlsPlan, load
from understudy_shared.tls.trouble import TlsReason, TlsSide, TlsTrouble, tls_trouble

log = logging.getLogger(__name__)

TLS = "tls"
"""The cause of degradation."""

SOON_PART, SOON_MAX_S = 0.1, 7 * 24 * 3600.0
"""A certificate ends soon in the last tenth of its life, at most a week: it should be renewed at two thirds."""

READ_AGAIN_S = 60.0
"""Interval at which refused files that do not change are read again: a certificate that is not valid yet will be."""

_Signature = tuple[tuple[int, int, int, int] | None, ...]


class ServiceTls:
    """`asks_peers`: internal calls need the certificate of a peer."""

    def __init__(self, plan: TlsPlan, *, now_s: Callable[[], float] = time.time) -> None:
        """Load the files. Raises SettingsError for files that cannot be used."""
        self.plan = plan
        self.asks_peers = plan.asks_peers
        self.refused: str | None = None
        """The reason why the present files are not used; None while they are."""
        self.refusals: Counter[tuple[TlsSide, TlsReason]] = Counter()
        self.reloads: Counter[str] = Counter()
        self._now_s = now_s
        self._seen = _signature_of(plan)
        """The signature of the files at the last check. They may have been refused then."""
        self._again_s = math.inf
        """The time at which files that have not changed are read again."""
        self.material = load(plan)
        self._reminder = Reminder()
        # Lines about peers that connect must not use up the room of those that this service connects to.
        self._throttles = {side: LogThrottle() for side in TlsSide}
        self.peers = None if self.material.client is None else CurrentContext.giving(self._client)
        """The context for connections to nodes, with the newest certificates; None: nodes are called by plain HTTP."""

    def __repr__(self) -> str:
        return f"ServiceTls({self.plan.role}, {self.refused or 'used'})"

    # ---- what connects to the service

    @property
    def server(self) -> ssl.SSLContext | None:
        """The context for the next connection that is accepted; None: this port speaks plain HTTP."""
        return self.material.server

    def why_no_peer(self, certificate: Mapping[str, Any] | None, version: str | None) -> TlsTrouble | None:
        """Return why a client's certificate does not make it a peer; None when it does, or where no peer is needed."""
        peers = self.material.peers
        if peers is None:
            return None
        trouble = peers.why_not(certificate)
        if trouble is None and version != "TLSv1.3":
            return TlsTrouble(TlsReason.VERSION, f"it speaks {version}: peers need TLS 1.3")
        return trouble

    # ---- what the service opens to nodes

    def _client(self) -> ssl.SSLContext:
        assert self.material.client is not None, "the files are the same all the time"
        return self.material.client

    def failed_to_connect(self, host: str, error: BaseException | None) -> str | None:
        """Note that a connection to a node failed, and return its TLS cause, if any."""
        trouble = tls_trouble(error)
        if trouble is None:
            return None
        self.note(TlsSide.CONNECT, trouble, host)
        return trouble.why

    # ---- both

    def note(self, side: TlsSide, trouble: TlsTrouble, host: str) -> None:
        """Count a refusal, and log it: one line per peer and reason in a minute."""
        self.refusals[side, trouble.reason] += 1
        left_out = self._throttles[side].admit((trouble.reason, host), self._now_s() * 1000)
        if left_out is not None:
            who = f"node {host}" if side is TlsSide.CONNECT else f"a connection of {host}"
            extra = {"action": "tls-refused", "side": side, "reason": trouble.reason, "peer": host, **left_out}
            log.warning("%s was refused: %s", who, trouble.why, extra=extra)

    def look(self) -> None:
        """Read the files again when one changed; log now and then those that cannot be used. It blocks."""
        signature = _signature_of(self.plan)
        if signature == self._seen and self._now_s() < self._again_s:
            self._remind()
            return
        try:
            material: TlsMaterial = load(self.plan)
        except (OSError, SettingsError) as error:
            self._seen = signature
            self._refuse(str(error))
            return
        if signature != _signature_of(self.plan):
            return  # The files change right now: the next check reads them whole.
        self._seen, self.material, self.refused, self._again_s = signature, material, None, math.inf
        self._reminder.reset()
        self.reloads["used"] += 1
        log.warning("certificates were read again", extra={"action": "audit-config", "outcome": "used"})

    def _refuse(self, why: str) -> None:
        if why != self.refused:
            self._reminder.reset()
            self.reloads["refused"] += 1
        self.refused, self._again_s = why, self._now_s() + READ_AGAIN_S
        self._remind()

    def _remind(self) -> None:
        if self.refused is not None and self._reminder.is_due(self._now_s() * 1000):
            extra = {"action": "audit-config", "outcome": "refused"}
            log.error("%s. The previous certificates stay in use", self.refused, extra=extra)

    def causes(self) -> dict[str, str]:
        """Return why TLS degrades the service, by cause: unusable files, or a certificate that ends soon."""
        if self.refused is not None:
            return {TLS: f"certificates are as they were: {self.refused}"}
        now_s = self._now_s()
        ending = [(life, path) for path, life in self.material.lifetimes.items() if ends_soon(life, now_s)]
        if not ending:
            return {}
        life, path = min(ending)
        left_s = life.ends_s - now_s
        when = f"expires in {left_s / 3600:.0f} hours" if left_s > 0 else "has expired"
        return {TLS: f"the certificate {path} {when}: renew it"}


def metrics_of(tls: ServiceTls | None) -> Iterator[Metric]:
    """Yield the metrics of TLS. Without TLS all refusals are 0, and no certificate expires."""
    ends = GaugeMetricFamily(
        "understudy_tls_certificate_expiry_timestamp_seconds",
        "When the first certificate in use expires, in seconds since 1970",
    )
    if tls is not None:
        ends.add_metric((), min(life.ends_s for life in tls.material.lifetimes.values()))
    yield ends
    reloads = CounterMetricFamily(
        "understudy_tls_reloads", "Certificates that changed, by whether they are used", labels=("outcome",)
    )
    for outcome in ("used", "refused"):
        reloads.add_metric((outcome,), 0 if tls is None else tls.reloads[outcome])
    yield reloads
    refusals = CounterMetricFamily(
        "understudy_tls_refusals",
        "Connections by TLS and internal calls on them that were refused, by side and reason",
        labels=("side", "reason"),
    )
    for side in TlsSide:
        for reason in TlsReason:
            refusals.add_metric((side, reason), 0 if tls is None else tls.refusals[side, reason])
    yield refusals


def ends_soon(life: Lifetime, now_s: float) -> bool:
    """Whether a certificate should have been renewed by now."""
    return life.ends_s - now_s < min(SOON_MAX_S, SOON_PART * (life.ends_s - life.begins_s))


def _signature_of(plan: TlsPlan) -> _Signature:
    """Return the file system's stamps of the files, behind links; None for one that does not exist."""
    return tuple(_stamp(path) for path in plan.files)


def _stamp(path: os.PathLike[str]) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
