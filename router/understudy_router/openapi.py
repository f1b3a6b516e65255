"""The lookups in the OpenAPI document: they are served in front of FastAPI, so it does not know of them."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from understudy_shared.lookup_paths import lookup_paths


def add_lookups(http: FastAPI) -> None:
    """Make `/openapi.json` complete."""
    generated = http.openapi

    def complete() -> dict[str, Any]:
        if http.openapi_schema is None:
            document = generated()
            document["paths"] |= lookup_paths()
        return http.openapi_schema or {}

    http.openapi = complete  # type: ignore[method-assign]  # FastAPI's documented way to extend it
