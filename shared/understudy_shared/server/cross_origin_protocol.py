"""HTTP/1.1 for a service that pages of other origins may read from (`cors.py`), on both ways into it.

A class of its own: where no origin is named, nothing of it is in the way of a lookup.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from understudy_shared.auth.api_keys import Presented
from understudy_shared.http.cors import Cors, origin_in
from understudy_shared.http.edge import App, Scope
from understudy_shared.server.direct import Headers
from understudy_shared.server.protocol import HttpProtocol


class CrossOriginProtocol(HttpProtocol):
    """One connection."""

    __slots__ = ("_cors", "_cors_headers")

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        cors: Cors,
        **others: Any,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop, **others)
        self._cors = cors
        self._cors_headers: Headers = ()
        """Those of the lookup that was taken, until it is answered."""

    def _hand_over(self, target: bytes, presented: Presented | None, headers: Headers = ()) -> bool:
        self._cors_headers = self._cors.headers(origin_in(headers))
        is_taken = super()._hand_over(target, presented, headers)
        if not is_taken:
            self._cors_headers = ()
        return is_taken

    def _keep_head(self, data: bytes, body_bytes: int) -> None:
        """Heads that are kept have no origin, so what is answered to an equal one needs no look at it."""
        if origin_in(self.headers) is None:
            super()._keep_head(data, body_bytes)

    def _reply(self, status: int, content_type: bytes, body: bytes, headers: Headers) -> None:
        added, self._cors_headers = self._cors_headers, ()
        super()._reply(status, content_type, body, (*headers, *added))

    def _guarded(self, scope: Scope, app: App) -> App:
        preflight = self._cors.preflight(scope)
        return self._cors.around(scope, super()._guarded(scope, app)) if preflight is None else preflight
