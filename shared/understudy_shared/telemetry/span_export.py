"""The decision whether spans are exported: only if the environment names a collector. Otherwise OpenTelemetry is not
imported.

The standard variables `OTEL_*` name the collector and the sampler.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping

from understudy_shared.base.errors import SettingsError
from understudy_shared.base.extras import install_fix
from understudy_shared.base.words import HostInfo
from understudy_shared.telemetry.spans import Spans

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
DISABLED = "OTEL_SDK_DISABLED"
HTTP_PROTOBUF = "http/protobuf"


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether spans are exported. Raises SettingsError for a protocol that is not supported here."""
    if not _first(ENDPOINTS, environment) or environment.get(DISABLED, "").strip().lower() == "true":
        return False
    protocol = _first(PROTOCOLS, environment)
    if protocol not in {"", HTTP_PROTOBUF}:
        raise SettingsError(
            f"spans are exported by {HTTP_PROTOBUF}, not by {protocol}",
            where=PROTOCOLS[1],
            fix="Leave it out, and let the endpoint be that of OTLP over HTTP, such as http://collector:4318",
        )
    return True


def require_exporter() -> None:
    """Raise SettingsError if spans are wanted and the packages for them are missing."""
    if is_wanted(os.environ):
        _exporter()


def open_spans(service: str, host: HostInfo) -> Spans | None:
    """Open the recorder of a service's spans; None if no endpoint is set. Raises SettingsError like `require_exporter`,
    and for a wrong variable.
    """
    if not is_wanted(os.environ):
        return None
    try:
        return _exporter()(service, host)
    except ValueError as error:
        raise SettingsError(f"spans cannot be exported: {error}", where="OTEL_*", fix="Correct the variable") from None


async def close_spans(spans: Spans | None) -> None:
    """Send the remaining spans, without blocking the event loop."""
    if spans is not None:
        await asyncio.to_thread(spans.close)


def _exporter() -> Callable[[str, HostInfo], Spans]:
    try:
        from understudy_shared.telemetry.otlp_spans import exported_spans  # noqa: PLC0415  # only where it is wanted
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"spans are to be exported, and {error.name} is not installed",
            where=next(name for name in ENDPOINTS if os.environ.get(name)),
            fix=f"{install_fix('otel')}; or unset the variable",
        ) from None
    return exported_spans


def _first(names: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """Return the first of these variables that is set."""
    return next((text for name in names if (text := environment.get(name, "").strip())), "")
