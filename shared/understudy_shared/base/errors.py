"""Errors by what the reader of the message should do next: what was wrong, where, and what to do.

Every error of the project is an `UnderstudyError`; foreign exceptions are translated where they enter. The HTTP face of
an error (status, problem type) is `problems.py`'s business, not this module's.
"""

from __future__ import annotations


class UnderstudyError(Exception):
    """`what` went wrong, `where` (a path, a column, a store), and what to `fix`."""

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what = what
        self.where = where
        self.fix = fix
        super().__init__(what, where, fix)

    def __str__(self) -> str:
        text = f"{self.what} ({self.where})" if self.where else self.what
        return f"{text}. {self.fix}" if self.fix else text


class CheckpointError(UnderstudyError):
    """Trouble with a checkpoint, as a whole or with one of its files."""


class NotACheckpointError(CheckpointError):
    """The path does not exist, is empty, or is not the checkpoint of a streaming query."""


class UnsupportedError(CheckpointError):
    """An operator, provider, encoding, codec or version this release does not read; `fix` says what to change."""


class CorruptFileError(CheckpointError):
    """A file that is truncated, fails its checksum, or does not parse. Nothing of it was applied."""

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        restore = "Check the storage and put the file back as Spark wrote it; a node that runs reads it again by itself"
        super().__init__(what, where=where, fix=fix or restore)


class VanishedError(CheckpointError):
    """A file disappeared between being chosen and being read (Spark's clean-up): choose again."""


class MissingVersionError(CheckpointError):
    """A version that the files of the checkpoint do not give: not yet, or not any more."""


class LocalDiskError(UnderstudyError):
    """The service's own disk is full, or cannot be written. What was shown before is still answered."""


class BadKeyError(UnderstudyError):
    """A key that does not fit its store's key schema; `where` names the column and its type."""


class NoSuchStoreError(UnderstudyError):
    """No store has that name; `fix` lists the names that exist."""


class SettingsError(UnderstudyError):
    """A setting, or a file that a setting names, is wrong; the caller has to correct it before the service starts."""
