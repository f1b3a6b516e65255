"""The settings of a service that are in force here, and where each one comes from (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from understudy.services.flags import Flag
from understudy.services.settings import PREFIX
from understudy_shared.base.masking import masked_location


class InForce(NamedTuple):
    """A setting: its value as people may see it (None: not set), and `flag`, `variable`, `file` or `default`."""

    name: str
    value: object
    source: str
    where: str


def in_force(
    table: Sequence[Flag], given: Mapping[str, Any], environ: Mapping[str, str], file: Mapping[str, Any], path: str
) -> list[InForce]:
    """List every setting, by the services' precedence: a flag, a variable, the file, the default (pure)."""
    variables = {name.lower(): (name, value) for name, value in environ.items()}
    names = ["checkpoint"] if any(flag.name == "checkpoint_wait_ms" for flag in table) else []
    defaults: dict[str, object] = {flag.name: flag.default for flag in table}
    found = []
    for name in [*names, *(flag.name for flag in table)]:
        variable = variables.get((PREFIX + name).lower())
        if name in given:
            option = "CHECKPOINT" if name == "checkpoint" else "--" + name.replace("_", "-")
            found.append(InForce(name, _shown(given[name]), "flag", option))
        elif variable is not None:
            found.append(InForce(name, _shown(variable[1]), "variable", variable[0]))
        elif name in file:
            found.append(InForce(name, _shown(file[name]), "file", path))
        else:
            found.append(InForce(name, defaults.get(name), "default", ""))
    return found


def _shown(value: object) -> object:
    return masked_location(value) if isinstance(value, str) else value
