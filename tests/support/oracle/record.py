"""What was compared with Spark, for the table in docs/oracle.md: `python -m tools.oracle_document` collects it.

A test records after it has compared, so what is recorded was equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.repository import ROOT
from tests.support.spark.formats import StateFormat

FOLDER = ROOT / ".cache" / "oracle"
ELEMENTS = ("sessions", "rows", "values", "entries", "timers")
"""Members of an answer that hold several elements of a key."""


@dataclass(frozen=True, slots=True)
class Compared:
    """An operator's stores in one checkpoint: how many keys they had, with how many elements over so many versions."""

    spark: str
    operator: str
    kind: str
    provider: str
    format_version: int
    changelog: bool
    variant: str
    """What of the format is not Spark's default beside these: a codec, row checksums. Mostly empty."""
    versions: int
    keys: int
    elements: int


def compared(
    spark: str, operator: str, kind: str, state_format: StateFormat, said: Iterable[Mapping[str, object]]
) -> Compared:
    """A line of the table. `said` has, for each store and version, what was said of each key."""
    of_versions = list(said)
    return Compared(
        spark=spark,
        operator=operator,
        kind=kind,
        provider=state_format.provider,
        format_version=state_format.format_version,
        changelog=state_format.changelog,
        variant=variant_of(state_format),
        versions=len(of_versions),
        keys=len({key for keys in of_versions for key in keys}),
        elements=sum(elements_of(each) for keys in of_versions for each in keys.values()),
    )


def variant_of(state_format: StateFormat) -> str:
    """The codec, row checksums and checkpoint manager, where they are not the tests' default."""
    parts: list[str] = [state_format.codec] if state_format.codec != "lz4" else []
    parts += ["avro"] if state_format.encoding == "avro" else []
    parts += ["row checksums"] if state_format.row_checksum else []
    parts += ["Spark's own checkpoint manager"] if state_format.checkpoint_manager == "default" else []
    return ", ".join(parts)


def elements_of(said: object) -> int:
    """How many elements an answer has: a value or a member of a set is one."""
    if isinstance(said, Mapping):
        for member in ELEMENTS:
            found = said.get(member)
            if isinstance(found, Sequence):
                return len(found)
    return 1


def record(name: str, lines: Sequence[Compared], folder: Path = FOLDER) -> None:
    """Keep what one checkpoint was compared for; what an earlier run kept under the name is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps([asdict(line) for line in lines]))
