"""A service's process: what is done once, before it serves."""

from __future__ import annotations

import subprocess
import sys

SERVICE = """
import gc, os, signal
from understudy_shared.http.service import bound_socket, run

async def app(scope, receive, send):
    assert scope["type"] == "lifespan"
    await receive()
    print(gc.get_freeze_count(), len(gc.get_objects()))
    await send({"type": "lifespan.startup.complete"})
    os.kill(os.getpid(), signal.SIGTERM)
    await receive()
    await send({"type": "lifespan.shutdown.complete"})

listener = bound_socket("127.0.0.1", 0)
listener.listen()
run(app, listener)
"""


def test_what_stays_for_the_life_of_a_service_is_no_matter_of_garbage_collection() -> None:
    command = [sys.executable, "-c", SERVICE]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    exempt, looked_at = map(int, printed.split())
    assert exempt > 20 * looked_at
