"""One query per checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from understudy_aligned.stream import CheckpointInUseError, CheckpointLock

HOLDER = """
import sys
from pathlib import Path
from understudy_aligned.stream import CheckpointLock
lock = CheckpointLock(Path(sys.argv[1]))
sys.stdout.write("held\\n")
sys.stdout.flush()
sys.stdin.read()
"""


def test_a_second_query_on_a_checkpoint_is_refused_with_the_process_of_the_first(tmp_path: Path) -> None:
    lock = CheckpointLock(tmp_path / "new" / "checkpoint")
    with pytest.raises(CheckpointInUseError, match=f"process {os.getpid()}"):
        CheckpointLock(tmp_path / "new" / "checkpoint", wait_s=0)
    lock.release()
    CheckpointLock(tmp_path / "new" / "checkpoint", wait_s=0).release()


def test_a_killed_planner_holds_nothing(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(CheckpointInUseError, match=f"process {holder.pid}"):
            CheckpointLock(tmp_path, wait_s=0)
        holder.send_signal(signal.SIGKILL)
    CheckpointLock(tmp_path, wait_s=0).release()


def test_a_query_that_is_started_again_at_once_waits_for_its_old_planner_to_go(tmp_path: Path) -> None:
    old = CheckpointLock(tmp_path)
    leaving = threading.Timer(0.1, old.release)
    leaving.start()
    CheckpointLock(tmp_path, wait_s=60).release()
    leaving.join()
