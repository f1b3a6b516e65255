"""The router as a process of its own: it opens its port without Redis, reports its health, and shuts down in order."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError
from tests.support.spark.queries import wait_until

from understudy_router.serve import main
from understudy_router.settings import RouterSettings
from understudy_shared.base.errors import UnderstudyError

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


def test_a_port_in_use_is_refused_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UnderstudyError, match="the port is in use") as refused:
            main({"redis": "redis://127.0.0.1:1/0", "application_id": "flights", "port": port})
    assert (refused.value.where, "--port" in refused.value.fix) == (f"127.0.0.1:{port}", True)


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"redis": "redis://h"}, "application_id"),
        ({"redis": "redis://h", "application_id": ""}, "application_id"),
        ({"application_id": "flights"}, "redis"),
        ({"redis": "redis://h", "application_id": "a", "hop_timeout_ms": 0}, "hop_timeout_ms"),
        ({"redis": "redis://h", "application_id": "a", "checkpoint": "/c"}, "checkpoint"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings: dict[str, object], wrong: str) -> None:
    with pytest.raises(ValidationError, match=wrong):
        RouterSettings.model_validate(settings)


def test_flags_win_over_variables_and_variables_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "understudy.toml"
    file.write_text('redis = "redis://file"\nport = 1\ndeadline_ms = 11\nhop_timeout_ms = 12\n')
    monkeypatch.setenv("UNDERSTUDY_CONFIG", str(file))
    monkeypatch.setenv("UNDERSTUDY_PORT", "2")
    monkeypatch.setenv("UNDERSTUDY_DEADLINE_MS", "22")
    settings = RouterSettings(application_id="flights", port=3)
    assert (settings.port, settings.deadline_ms, settings.hop_timeout_ms) == (3, 22, 12)
    assert settings.redis == "redis://file"
