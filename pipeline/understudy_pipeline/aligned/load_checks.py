"""What servers have to say about the options, asked once, at `load()`: before a query exists that could fail."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from understudy_pipeline.aligned.options import AlignedOptions
from understudy_pipeline.inputs.opening import open_input
from understudy_shared.errors import SettingsError


def check_inputs(options: AlignedOptions) -> Mapping[str, int]:
    """Partitions of every topic. Each server has `request_timeout_ms` to answer.

    Raises InputError when one does not, UnknownTopicError, and SettingsError when the topics cannot be merged as told.
    """
    counts: dict[str, int] = {}
    for config in options.inputs:
        opened = open_input(config)
        try:
            counts |= opened.partitions(timeout_ms=options.request_timeout_ms)
        finally:
            opened.close()
    if options.merge == "task" and len(set(counts.values())) > 1:
        told = ", ".join(f"{topic} has {counts[topic]}" for topic in options.topics)
        raise SettingsError(
            f"topics that are merged partition by partition need as many partitions each: {told}",
            where="option merge",
            fix="Set merge to 'global' to merge all partitions together, or give the topics the same number",
        )
    return counts


def check_folders(options: AlignedOptions) -> None:
    """Raises SettingsError for a folder that this machine cannot write to."""
    for name, folder in (("undecodable_path", options.undecodable_path), ("checkpoint", options.checkpoint)):
        if folder is not None and not _is_writable(folder):
            raise SettingsError(
                f"'{folder}' is no folder that can be made or written to",
                where=f"option {name}",
                fix="Give another, or the rights to this one",
            )


def _is_writable(folder: Path) -> bool:
    """Whether it is there, or can be made, and takes files."""
    for place in (folder, *folder.parents):
        if place.exists():
            return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    return False
