"""The folder of the repository, for tests that read its files."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The folder that holds README.md."""
