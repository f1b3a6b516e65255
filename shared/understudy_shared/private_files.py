"""What a service writes to its disk is for its own user: state may hold what only readers with a grant may see.

Files that are hard links share the mode of the checkpoint's files, which are not ours to change: the folder around them
keeps others out.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PRIVATE_FOLDER = 0o700
PRIVATE_UMASK = 0o077


def keep_files_private() -> None:
    """From now on what this process makes is for its user only, whichever library makes it. For a service's `main`."""
    os.umask(PRIVATE_UMASK)


def private_folder(folder: Path) -> None:
    """Make a folder that only this user may enter; one that an earlier release left open to others is closed.

    For folders that are ours by name, never for one that an operator names: that may be anybody's. Raises OSError.
    """
    folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o777 != PRIVATE_FOLDER:
        with suppress(PermissionError):  # another user's, who lets this one write
            folder.chmod(PRIVATE_FOLDER)
