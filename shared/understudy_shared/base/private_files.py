"""Keeps the files of a service private to its user: they hold state that other users may not be allowed to read.

Hard links share the mode of the checkpoint's files, which a service must not change. The private folder around them
keeps other users out.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PRIVATE_FOLDER = 0o700
PRIVATE_UMASK = 0o077


def keep_files_private() -> None:
    """Make all later files of this process private, those of libraries too. A service's `main` calls it."""
    os.umask(PRIVATE_UMASK)


def private_folder(folder: Path) -> None:
    """Make a folder that only this user may enter, and close one that is open to others.

    Only for folders that Understudy names, never for a folder that an operator names. Raises OSError.
    """
    folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o777 != PRIVATE_FOLDER:
        with suppress(PermissionError):  # another user owns it and lets this user write
            folder.chmod(PRIVATE_FOLDER)
