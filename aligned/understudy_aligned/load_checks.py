"""Checks of options that need a server or a folder. They run at `load()`, before there is a query that could fail."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from understudy_aligned.open_inputs import OpenInputs
from understudy_aligned.options import AlignedOptions
from understudy_shared.base.errors import SettingsError


def check_inputs(options: AlignedOptions) -> Mapping[str, int]:
    """Ask every server for its topics, over a new connection (`check_opened`)."""
    inputs = OpenInputs(options.inputs)
    try:
        return check_opened(options, inputs)
    finally:
        inputs.close()


def check_opened(options: AlignedOptions, inputs: OpenInputs) -> Mapping[str, int]:
    """Ask every server for its topics, and return the partition count of each topic.

    Raises InputError when a server does not answer within `request_timeout_ms`, UnknownTopicError, and SettingsError
    for a partition that is assigned and does not exist.
    """
    counts: dict[str, int] = {}
    for index in range(len(options.inputs)):
        with inputs.lend(index) as asked:
            counts |= asked.partitions(timeout_ms=options.request_timeout_ms)
    unknown = sorted((options.assigned or frozenset()) - set(options.partitions(counts)))
    if unknown:
        counted = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
        raise SettingsError(
            f"partitions that are assigned do not exist: {', '.join(map(str, unknown))}",
            where="option assign",
            fix=f"Partitions are numbered from 0: {counted}",
        )
    return counts


def check_even(options: AlignedOptions, counts: Mapping[str, int]) -> None:
    """Raise SettingsError if a new query cannot merge topics of these partition counts partition by partition.

    A query that has begun is never refused: a topic may have grown since, and its `merge` is fixed.
    """
    is_merged = options.merge == "task" and options.assigned is None
    if is_merged and len(set(counts.values())) > 1:
        counted = ", ".join(f"{topic} has {counts[topic]}" for topic in options.topics or counts)
        raise SettingsError(
            f"topics that are merged partition by partition need equal numbers of partitions: {counted}",
            where="option merge",
            fix="Set merge to 'global' to merge all partitions together, or give every topic as many partitions",
        )


def check_folders(options: AlignedOptions) -> None:
    """Raise SettingsError if this process cannot write to a folder that an option names. Make the folder of poison
    records.

    Executors do not make it: one that does not share the folder would write to its own disk unnoticed.
    """
    for name, folder in (("undecodable_path", options.undecodable_path), ("checkpoint", options.checkpoint)):
        if folder is not None and not _is_writable(folder):
            raise SettingsError(
                f"the folder '{folder}' cannot be created or written to",
                where=f"option {name}",
                fix="Name another folder, or give this user write access to it",
            )
    if options.undecodable_path is not None:
        options.undecodable_path.mkdir(parents=True, exist_ok=True)


def _is_writable(folder: Path) -> bool:
    """Whether the folder, or its nearest parent that exists, is a folder that this process can write to."""
    for place in (folder, *folder.parents):
        if place.exists():
            return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    return False
