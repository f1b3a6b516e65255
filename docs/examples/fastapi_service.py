"""A FastAPI service that answers from the state of a streaming query.

UNDERSTUDY_URL=http://router-1:8080,http://router-2:8080 uvicorn fastapi_service:app
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

from understudy import AsyncClient, BadRequestError, UnderstudyError


@dataclass
class Aircraft:
    """The value of the store, as `understudy types aircraft` prints it."""

    flights: int | None
    delay_sum: int | None


def client_of(request: Request) -> AsyncClient:
    """Return the client of this process: all requests share its connections."""
    client: AsyncClient = request.app.state.understudy
    return client


Understudy = Annotated[AsyncClient, Depends(client_of)]


def create_app(new_client: Callable[[], AsyncClient] = AsyncClient) -> FastAPI:
    """Return the service. A test gives it a client of its own."""

    @asynccontextmanager
    async def lifespan(service: FastAPI) -> AsyncIterator[None]:
        async with new_client() as client:
            service.state.understudy = client
            yield

    service = FastAPI(lifespan=lifespan)

    @service.get("/aircraft/{tail}")
    async def aircraft(tail: str, client: Understudy) -> dict[str, Any]:
        """Say how often an aircraft flew, and of when that is."""
        store = client.store("aircraft", value=Aircraft)
        found = await store.get(tail, max_staleness=timedelta(seconds=5), timeout=0.5)
        if found.value is None:
            raise HTTPException(404, f"no aircraft {tail}")
        return {"tail": tail, "flights": found.value.flights, "version": found.version, "at": found.committed_at}

    @service.exception_handler(UnderstudyError)
    async def failed(_: Request, error: UnderstudyError) -> JSONResponse:
        """Tell a request that is wrong from state that cannot be read now."""
        if isinstance(error, BadRequestError):
            return JSONResponse({"detail": error.what}, 400)
        return JSONResponse({"detail": "the state cannot be read now"}, 503, {"retry-after": "1"})

    return service


app = create_app()
