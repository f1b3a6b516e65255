"""Runs a process of the jar: a thread takes requests and watches the pipe, the main thread answers."""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable

from understudy_aligned.accelerator.frames import ERROR, PROTOCOL, REPLY, Frames, frames_of_process
from understudy_shared.base.errors import UnderstudyError

_BEAT_S = 1.0

Answer = Callable[[bytes, Frames], bytes]
"""A function of a request that may write data, and returns the reply."""


def serve(answer: Answer, *, at_end: Callable[[], None]) -> None:
    """Answer requests until the jar closes the pipe or dies. Then call `at_end` in another thread, and exit at once.

    Raises SystemExit if the jar speaks another version of the protocol.
    """
    if sys.argv[1:2] != [str(PROTOCOL)]:
        raise SystemExit(
            f"the jar speaks version {' '.join(sys.argv[1:2])} of the protocol, and this package version {PROTOCOL}. "
            "Take the jar that is in the installed package: python -m understudy_aligned.accelerator shows it"
        )
    # Ctrl-C in a terminal reaches the whole group of processes. The jar says when it is over.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    frames = frames_of_process()
    requests: queue.Queue[bytes] = queue.Queue(1)
    is_busy = threading.Event()
    listening = threading.Thread(target=_listen, args=(frames, requests, is_busy, at_end), daemon=True)
    listening.start()
    while True:
        request = requests.get()
        kind, payload = _answered(answer, request, frames)
        is_busy.clear()
        frames.write(kind, payload)


def _answered(answer: Answer, request: bytes, frames: Frames) -> tuple[bytes, bytes]:
    try:
        return REPLY, answer(request, frames)
    except UnderstudyError as error:
        return ERROR, f"{type(error).__name__}: {error}".encode()
    except BrokenPipeError:
        raise
    except Exception:  # any error: the jar shows it to the user
        return ERROR, traceback.format_exc().encode()


def _listen(frames: Frames, requests: queue.Queue[bytes], is_busy: threading.Event, at_end: Callable[[], None]) -> None:
    code = 0
    try:
        while True:
            readable, _, _ = select.select([frames.source], [], [], _BEAT_S if is_busy.is_set() else None)
            if readable:
                request = frames.read_request()
                if request is None:
                    break
                is_busy.set()
                requests.put(request)
            else:
                frames.beat()
    except BrokenPipeError:
        pass
    except BaseException:  # without this thread the process would never end
        traceback.print_exc()
        code = 1
    finally:
        try:
            at_end()
        finally:
            # Nothing waits for this process, so Python's orderly exit is skipped.
            os._exit(code)


def to_json(found: object) -> bytes:
    """Write a reply as JSON, in the form in which PySpark writes offsets."""
    return json.dumps(found).encode()
