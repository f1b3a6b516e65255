"""The applications that have keys on one bus, and the message when the wanted one is not heard (pure).

Names come from keys that anybody may have written: what cannot be an application id is left out, the rest is clipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from understudy_shared.base.texts import clipped, did_you_mean

KEY_PREFIX = "us:{"
ANNOUNCED = "us:announced"
"""The channel that says that a query was announced, by its application's id: a reason to look, and nothing else."""

NODE = "node:"
ANNOUNCEMENT = "announcement"
MAX_NAMED = 5
"""Applications that a sentence names."""
MAX_ID_CHARS = 256


def key_root(application_id: str) -> str:
    """Return the prefix of every key of an application."""
    return f"{KEY_PREFIX}{quote(application_id, safe='')}}}:"


@dataclass(frozen=True, slots=True)
class Applications:
    """The number of nodes that each application has on a bus; 0 where only its other keys are left."""

    nodes: dict[str, int]
    is_all: bool = True
    """Whether these are all: False when the bus has more keys than were read."""
    announced: frozenset[str] = frozenset()
    """Those that a pipeline has announced."""

    @classmethod
    def of_keys(cls, keys: Iterable[str], *, is_all: bool) -> Applications:
        """Count the nodes in keys such as `us:{flights}:node:n1`."""
        nodes: Counter[str] = Counter()
        announced = set()
        for key in keys:
            name, _, rest = key.removeprefix(KEY_PREFIX).partition("}:")
            application_id = unquote(name)
            if 0 < len(application_id) <= MAX_ID_CHARS and key.startswith(key_root(application_id)):
                nodes[application_id] += rest.startswith(NODE)
                if rest == ANNOUNCEMENT:
                    announced.add(application_id)
        return cls(dict(sorted(nodes.items())), is_all, frozenset(announced))

    def others(self, application_id: str) -> list[str]:
        """List the other applications that have nodes."""
        return [name for name, nodes in self.nodes.items() if nodes and name != application_id]

    def without_nodes(self, application_id: str) -> list[str]:
        """List the other applications that have keys, but no live node."""
        return [name for name, nodes in self.nodes.items() if not nodes and name != application_id]


def unheard_text(application_id: str, found: Applications, *, where: str) -> str:
    """Say, for a router, that it hears no node of its application."""
    heard, silent = found.others(application_id), found.without_nodes(application_id)
    text = f"no node of application {clipped(application_id)} is heard on {where}; "
    if heard:
        text += f"heard there: {named(heard)}"
    elif silent:
        text += f"no other application is heard there, but there are keys of: {named(silent)}"
    else:
        text += "no other application is heard there"
    return text if found.is_all else f"{text} (it has more keys than were read)"


def unheard_fix(application_id: str, found: Applications, *, where: str) -> str:
    """Say what a reader of such a router has to do, with the reason."""
    text = unheard_text(application_id, found, where=where)
    known = [*found.others(application_id), *found.without_nodes(application_id)]
    return f"{text[0].upper()}{text[1:]}. {did_you_mean(application_id, known)}{CHECK}"


CHECK = "Check --application-id and --redis, or start nodes"


def named(names: Sequence[str]) -> str:
    """Print a few names, and how many more there are."""
    shown = ", ".join(clipped(name) for name in names[:MAX_NAMED])
    return shown + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")
