"""Commands that start a program from which one folder is hidden, as what lies on another machine's disk is.

- `away`: the folder is empty for the program, by a mount namespace. Root may make one, and any user where the kernel
  lets users have namespaces.
- `denied`: the folder may not be entered, as if it were another user's: it has no permissions, and the program lacks
  the capabilities by which root passes over them. Works for root, in a container without privileges too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

Way = Literal["away", "denied"]
_WAYS: tuple[Way, ...] = ("away", "denied")

_MOUNT = 'mount -t tmpfs -o mode=700,size=1m none "$0" && exec "$@"'
_DENY = """
import ctypes, os, sys
for capability in (1, 2):  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH; 24 is PR_CAPBSET_DROP
    if ctypes.CDLL(None, use_errno=True).prctl(24, capability, 0, 0, 0) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[1], sys.argv[1:])
"""
_LOOK = 'if test -e "$0"; then echo seen; else echo hidden; fi'
_LOOK_LIMIT_S = 30


def hide(folder: Path) -> list[str] | str:
    """What to put before a command, by the first of the ways that works here; else why none does.

    `folder` must be there. This process keeps its access.
    """
    reasons = []
    for way in _WAYS:
        command = _command(folder, way)
        refusal = command if isinstance(command, str) else _refusal(command, folder)
        if refusal is None:
            return list(command)
        folder.chmod(0o700)
        reasons.append(f"{way}: {refusal}")
    return "; ".join(reasons)


def _command(folder: Path, way: Way) -> list[str] | str:
    is_root = os.getuid() == 0
    if way == "away":
        users = [] if is_root else ["--user", "--map-root-user"]
        return ["unshare", *users, "--mount", "sh", "-c", _MOUNT, str(folder)]
    if not is_root:
        return "only root can enter a folder without permissions"
    folder.chmod(0)
    return [sys.executable, "-I", "-S", "-c", _DENY]


def _refusal(command: Sequence[str], folder: Path) -> str | None:
    """Why a program sees what is in the folder, or does not start; None when it is hidden."""
    probe = folder / "probe"
    probe.touch()
    look = [*command, "sh", "-c", _LOOK, str(probe)]
    try:
        done = subprocess.run(look, capture_output=True, text=True, timeout=_LOOK_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        probe.unlink()
    said = done.stdout.strip()
    return None if said == "hidden" else said or done.stderr.strip()
