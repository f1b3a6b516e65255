"""The router as a process of its own: it opens its port without Redis, reports its health, and shuts down in order."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from tests.support.spark.queries import wait_until

CODE = """
import sys
from understudy_router.serve import main
main({"redis": sys.argv[1], "application_id": "flights", "port": 0},
     started=lambda router: print(router.host.port, router.not_ready() != [], flush=True))
"""


@contextmanager
def router_process(redis: str) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """A router, and a client of it."""
    process = subprocess.Popen([sys.executable, "-c", CODE, redis], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port, unready = process.stdout.readline().split()
        assert unready == "True"
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield process, client
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_a_router_serves_without_redis_and_ends_with_a_signal(tmp_path: Path) -> None:
    with router_process(f"unix://{tmp_path}/nobody.sock") as (process, client):
        wait_until(lambda: "nobody.sock" in str(client.get("/readyz").json()["degraded"]), what="Redis to be missed")
        assert client.get("/livez").status_code == 200
        refused = client.get("/v1/stores/words/keys/x")
        assert (refused.status_code, refused.json()["type"]) == (503, "not-initialised")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in {0, -signal.SIGTERM}
