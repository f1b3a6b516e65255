"""A service's process: what is done once, before it serves."""

from __future__ import annotations

import subprocess
import sys

SERVICE = """
import gc, os, signal
from understudy_shared.server.service import bound_socket, run

async def app(scope, receive, send):
    assert scope["type"] == "lifespan"
    await receive()
    print(gc.get_freeze_count(), len(gc.get_objects()))
    await send({"type": "lifespan.startup.complete"})
    os.kill(os.getpid(), signal.SIGTERM)
    await receive()
    await send({"type": "lifespan.shutdown.complete"})

run(app, bound_socket("127.0.0.1", 0))
"""

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

COLLECTS = """
import gc, os, signal, weakref
from understudy_shared.server.service import bound_socket, run

class Garbage:
    pass

async def app(scope, receive, send):
    await receive()
    print("starts")
    await send({"type": "lifespan.startup.complete"})
    await receive()
    print("ends")
    await send({"type": "lifespan.shutdown.complete"})

gc.disable()
first, second = Garbage(), Garbage()
first.other, second.other = second, first
seen = weakref.ref(first, lambda _: os.kill(os.getpid(), signal.SIGINT))
del first, second
signal.signal(signal.SIGINT, signal.default_int_handler)
run(app, bound_socket("127.0.0.1", 0))
"""

TAKES = """
import asyncio, os, signal, socket
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.service import bound_socket, run

listener, guard, clients, turns = bound_socket("127.0.0.1", 0), ConnectionGuard(), [], 0

async def app(scope, receive, send):
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})

def listening():
    clients.extend(socket.create_connection(listener.getsockname()) for _ in range(64))
    turn()

def turn():
    global turns
    if len(guard.connections) < 64:
        turns += 1
        asyncio.get_running_loop().call_soon(turn)
    else:
        print(turns)
        os.kill(os.getpid(), signal.SIGTERM)

run(app, listener, guard=guard, listening=listening)
"""


def test_what_stays_for_the_life_of_a_service_is_no_matter_of_garbage_collection() -> None:
    command = [sys.executable, "-c", SERVICE]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    exempt, looked_at = map(int, printed.split())
    assert exempt > 20 * looked_at


def test_a_service_listens_when_its_application_has_started_and_says_so_then() -> None:
    command = [sys.executable, "-u", "-c", STARTS]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.splitlines() == ["starts False", "listening True", "ends"]


def test_a_port_that_another_took_meanwhile_is_named_and_the_application_ends_in_good_order() -> None:
    command = [sys.executable, "-u", "-c", STARTS, "taken"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.splitlines() == ["starts False", "ends"]
    assert "UnderstudyError: the port is in use (127.0.0.1:" in ended.stderr


def test_an_interrupt_within_the_collection_before_the_start_ends_the_service() -> None:
    command = [sys.executable, "-u", "-c", COLLECTS]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout.splitlines(), ended.stderr.splitlines()[-1]) == (["starts", "ends"], "KeyboardInterrupt")
    assert "ignored" not in ended.stderr


def test_connections_that_come_together_do_not_wait_for_a_turn_of_the_loop_each() -> None:
    command = [sys.executable, "-c", TAKES]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert 1 < int(ended.stdout) <= 32, ended.stderr
