"""A client that `openapi-generator` makes in Python: made from a document, and asked."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path
from typing import Any

from tests.support.clients.conversation import KEYS, MISSING, PAIR, WORD
from tests.support.clients.tools import GENERATOR_JAR

from understudy.demo.java_home import java_home

_SAID = re.compile(r"(?:WARN|ERROR) .*")


def generated(document: Path, folder: Path, package: str) -> set[str]:
    """Write the package into the folder. Returns its warnings and errors, each once."""
    command: list[str | Path] = [java_home().path / "bin" / "java", "-XX:TieredStopAtLevel=1", "-jar", GENERATOR_JAR]
    arguments: list[str | Path] = ["generate", "-g", "python", "-i", document, "-o", folder, "--package-name", package]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(_SAID.findall(done.stdout + done.stderr))


def asked(package: str, url: str) -> dict[str, object]:
    """What the client understood, by question; the package is importable."""
    library: Any = importlib.import_module(package)
    client = library.ApiClient(library.Configuration(host=url))
    lookups = library.LookupsApi(client)

    def understood(answer: Any) -> list[object]:
        found = getattr(answer, "actual_instance", answer)
        if isinstance(found, library.Problem):
            return ["problem", found.type]
        if not found.found:
            return ["absent", found.key["word"]]
        return ["found", found.key["word"], found.value["count"]]

    def answer(call: Any, *arguments: object, **more: object) -> list[object]:
        try:
            return understood(call(*arguments, **more))
        except library.ApiException as error:
            return understood(error.data)

    bounds = library.Bounds(max_lag=0, require_active=True, include_expired=False)
    body = library.Batch(keys=KEYS, bounds=bounds)
    batches = [lookups.look_up_many("op0", body, compact=compact).actual_instance for compact in (False, True)]
    return {
        "one column": answer(lookups.look_up, "op0", WORD),
        "one column, under bounds": answer(
            lookups.look_up, "op0", WORD, max_lag=0, require_active=True, include_expired=False, limit=10
        ),
        "two columns": answer(lookups.look_up_exactly, "op1", PAIR),
        "absent": answer(lookups.look_up, "op0", "nobody"),
        "absent, exact form": answer(lookups.look_up_exactly, "op1", MISSING),
        "no such store": answer(lookups.look_up, "op9", WORD),
        "batch": [understood(each) for each in batches[0].results],
        "compact batch": [understood(each) for each in batches[1].results],
        "refused": answer(lookups.look_up, "op0", WORD, cursor="x"),
        "stores": [each.store for each in library.StoresApi(client).list_stores().stores],
    }
