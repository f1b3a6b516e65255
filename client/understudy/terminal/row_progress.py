"""The number of rows that have come so far, on a terminal."""

from __future__ import annotations

import sys

import click


class RowProgress:
    """The number of rows so far, on a terminal that shows nothing else."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty() and not sys.stdout.isatty()
        self._rows = 0

    def __enter__(self) -> RowProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown and self._rows:
            click.echo("", err=True)

    def add(self, rows: int, version: object) -> None:
        """Show that so many more rows came."""
        self.set(self._rows + rows, version)

    def set(self, rows: int, version: object) -> None:
        """Show how many rows there are so far."""
        self._rows = rows
        if self._is_shown:
            click.echo(f"\r{rows:,} rows of version {version}", nl=False, err=True)
