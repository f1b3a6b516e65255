"""The start of `understudy serve` and `understudy node`: one application, or a process of several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from understudy_node.fleet.settings import Asked, AskedNode
from understudy_shared.base.importing import without_collections


def serve(settings: dict[str, object], started: Callable[[Any], None] | None = None) -> None:
    """Serve one checkpoint or several. `started` gets what is served, before the first request."""
    if _asked(Asked, settings).is_fleet:
        with without_collections():
            from understudy_node.fleet import serve as fleet  # noqa: PLC0415  # one application needs nothing of it

        fleet.serve(settings, started)
    else:
        with without_collections():
            from understudy_node import serve as alone  # noqa: PLC0415

        alone.main(settings, started)


def node(settings: dict[str, object], started: Callable[[Any], None] | None = None) -> None:
    """Serve as a node of one application, or of several."""
    if _asked(AskedNode, settings).is_fleet:
        with without_collections():
            from understudy_node.fleet import serve as fleet  # noqa: PLC0415

        fleet.node(settings, started)
    else:
        with without_collections():
            from understudy_node.cluster import serve as alone  # noqa: PLC0415

        alone.main(settings, started)


def _asked(kind: type[Asked], settings: Mapping[str, object]) -> Asked:
    return kind(**{name: settings[name] for name in kind.model_fields if name in settings})  # type: ignore[arg-type]
