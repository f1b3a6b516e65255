"""The position token: what a reader has seen, accepted by any replica.

One version and its commit time stand for a whole application, because every batch advances every task. Tokens merge by
maximum; tokens of two lineages do not merge. The commit time catches a rewound history: the same version, committed at
another time, is not what the reader saw, and does not merge either.
"""

from __future__ import annotations

from dataclasses import dataclass

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.reads.tokens import encode_token, fields_of

PREFIX = "us1."
MAX_TOKEN_CHARS = 2048
"""Far above any real token (about 150); a longer one is not parsed."""


class BadPositionError(UnderstudyError):
    """The project did not issue this token, or it was cut."""


class LineageChangedError(UnderstudyError):
    """The token belongs to another life of the application: its versions mean nothing here."""


@dataclass(frozen=True, slots=True)
class Position:
    """A position: `version` was visible; `committed_at_us` is the commit file's modification time, None if purged."""

    application_id: ApplicationId
    lineage: Lineage
    version: int
    committed_at_us: int | None

    def encode(self) -> str:
        """Return the token: `us1.` and URL-safe base64 of a JSON array."""
        fields = [self.application_id, self.lineage, self.version, self.committed_at_us]
        return encode_token(PREFIX, fields)

    def merge(self, other: Position) -> Position:
        """Return the later of two positions; raise `LineageChangedError` when they are not of one history."""
        if (self.application_id, self.lineage) != (other.application_id, other.lineage):
            raise LineageChangedError(
                f"positions of lineage {self.lineage} and {other.lineage} cannot be merged",
                fix="Drop the older token: the checkpoint was re-created",
            )
        if self.version != other.version:
            return max(self, other, key=lambda position: position.version)
        if self.committed_at_us is None or other.committed_at_us is None:
            return self if other.committed_at_us is None else other  # the one that says more
        if self.committed_at_us != other.committed_at_us:
            raise LineageChangedError(
                f"version {self.version} was committed twice: the positions are of two histories",
                fix="Drop the older token: the checkpoint was rewound",
            )
        return self


def decode_position(token: str) -> Position:
    """Parse a token; `BadPositionError` says why it is not one."""
    if not token.startswith(PREFIX) or len(token) > MAX_TOKEN_CHARS:
        raise _bad(token, f"it does not start with {PREFIX!r} or is longer than {MAX_TOKEN_CHARS} characters")
    try:
        match fields_of(token[len(PREFIX) :]):
            case [str(application), str(lineage), int(version), int() | None as committed_at_us] if version >= 0:
                position = Position(ApplicationId(application), Lineage(lineage), version, committed_at_us)
                if position.encode() == token and bool not in (type(version), type(committed_at_us)):
                    return position
    except (ValueError, RecursionError) as error:  # bad base64, UTF-8 or JSON are all ValueErrors
        raise _bad(token, f"its body does not decode ({error})") from None
    raise _bad(token, "its fields are not (application, lineage, version, commit time) as they were issued")


def _bad(token: str, why: str) -> BadPositionError:
    shown = token if len(token) <= 40 else token[:37] + "..."
    return BadPositionError(
        f"{shown!r} is not a position token: {why}",
        where="min_position",
        fix="Send the `position` of an earlier answer, unchanged",
    )
