"""A service's process: what is done once, before it serves."""

from __future__ import annotations

import subprocess
import sys

STARTS = """
import os, signal, socket, sys
from understudy_shared.server.service import bound_socket, run

listener, others = bound_socket("127.0.0.1", 0), None

def is_listening():
    return bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))

async def app(scope, receive, send):
    global others
    await receive()
    print("starts", is_listening())
    if sys.argv[1:]:
        others = bound_socket(*listener.getsockname())
        others.listen()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    print("ends")
    await send({"type": "lifespan.shutdown.complete"})

def listening():
    print("listening", is_listening())
    os.kill(os.getpid(), signal.SIGTERM)

run(app, listener, listening=listening)
"""


def test_a_service_listens_when_its_application_has_started_and_says_so_then() -> None:
    command = [sys.executable, "-u", "-c", STARTS]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.splitlines() == ["starts False", "listening True", "ends"]


def test_a_port_that_another_took_meanwhile_is_named_and_the_application_ends_in_good_order() -> None:
    command = [sys.executable, "-u", "-c", STARTS, "taken"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.splitlines() == ["starts False", "ends"]
    assert "UnderstudyError: the port is in use (127.0.0.1:" in ended.stderr
