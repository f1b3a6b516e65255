"""A client that `openapi-python-client` generates: made from a document, and asked."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from openapi_python_client import generate
from openapi_python_client.config import Config, ConfigFile, MetaType
from tests.support.clients.conversation import KEYS, MISSING, PAIR, WORD


def generated(document: Path, package: Path) -> list[str]:
    """Write the package. Returns every warning and error."""
    # The generator does not know NDJSON, the format of streamed changes. This setting makes it plain text.
    settings = ConfigFile(post_hooks=[], content_type_overrides={"application/x-ndjson": "text/plain"})
    config = Config.from_sources(settings, MetaType.NONE, document, "utf-8", True, package)
    return [f"{each.header} {each.detail}" for each in generate(config=config)]


def asked(package: str, url: str) -> dict[str, object]:
    """What the client understood, by question; the package is importable."""

    def module(name: str) -> Any:
        return importlib.import_module(f"{package}.{name}")

    models, lookups = module("models"), "api.lookups"
    client = module("client").Client(base_url=url, raise_on_unexpected_status=True)
    look_up, exactly, many = (
        module(f"{lookups}.{name}").sync for name in ("look_up", "look_up_exactly", "look_up_many")
    )
    bounds = models.Bounds(max_lag=0, require_active=True, include_expired=False)
    body = models.Batch(keys=KEYS, bounds=bounds)

    def understood(answer: Any) -> list[object]:
        if isinstance(answer, models.Problem):
            return ["problem", str(answer.type_)]
        if not answer.found:
            return ["absent", answer.key["word"]]
        return ["found", answer.key["word"], answer.value["count"]]

    with client:
        batches = [many("op0", client=client, body=body, compact=compact) for compact in (False, True)]
        return {
            "one column": understood(look_up("op0", WORD, client=client)),
            "one column, under bounds": understood(
                look_up("op0", WORD, client=client, max_lag=0, require_active=True, include_expired=False, limit=10)
            ),
            "two columns": understood(exactly("op1", client=client, key=PAIR)),
            "absent": understood(look_up("op0", "nobody", client=client)),
            "absent, exact form": understood(exactly("op1", client=client, key=MISSING)),
            "no such store": understood(look_up("op9", WORD, client=client)),
            "batch": [understood(each) for each in batches[0].results],
            "compact batch": [understood(each) for each in batches[1].results],
            "refused": understood(look_up("op0", WORD, client=client, cursor="x")),
            "stores": [each.store for each in module("api.stores.list_stores").sync(client=client).stores],
        }
