"""The life of a service: its port, its end, and short collections of garbage."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from understudy_shared.server import service
from understudy_shared.server.service import SurvivorsLeftOut

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


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-u", "-c", STARTS, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_service_listens_when_its_application_has_started_and_says_so_then() -> None:
    assert run().stdout.splitlines() == ["starts False", "listening True", "ends"]


def test_a_port_that_another_took_meanwhile_is_named_and_the_application_ends_in_good_order() -> None:
    ended = run("taken")
    assert ended.stdout.splitlines() == ["starts False", "ends"]
    assert "UnderstudyError: the port is in use (127.0.0.1:" in ended.stderr


class Cyclic:
    """An object that only the collector frees."""

    freed = 0

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        Cyclic.freed += 1


@pytest.fixture(autouse=True)
def leaves_out(monkeypatch: pytest.MonkeyPatch) -> Iterator[SurvivorsLeftOut]:
    """A callback beside those of this process, to which every full collection is a long one."""
    monkeypatch.setattr(service, "LONG_S", 0.0)
    monkeypatch.setattr(Cyclic, "freed", 0)
    gc.disable()  # only collections of the test
    gc.unfreeze()
    callback = SurvivorsLeftOut()
    gc.callbacks.append(callback)
    yield callback
    gc.callbacks.remove(callback)
    gc.unfreeze()
    gc.enable()
    gc.collect()


def test_what_survives_a_long_full_collection_is_not_looked_at_again() -> None:
    kept = [Cyclic() for _ in range(100)]
    gc.collect(1)
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert gc.get_freeze_count() > 100
    assert not any(isinstance(each, Cyclic) for each in gc.get_objects())
    kept.clear()
    gc.collect()
    assert Cyclic.freed == 0


def test_all_is_looked_at_again_when_twice_as_much_is_left_out() -> None:
    kept = [Cyclic() for _ in range(100)]
    gc.collect()
    kept.clear()
    more = [[] for _ in range(2 * gc.get_freeze_count())]  # type: ignore[var-annotated]
    gc.collect()
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert Cyclic.freed == 100
    assert len(more) < gc.get_freeze_count()
