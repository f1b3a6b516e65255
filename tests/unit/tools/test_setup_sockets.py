"""Sockets lie in folders that only their owner may enter, at paths that the kernel takes."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.sockets import MAX_SOCKET_PATH_BYTES, SocketPathError, private_socket_dir, socket_path


def test_the_folder_is_private_takes_a_socket_and_is_gone_afterwards() -> None:
    with private_socket_dir("a.sock") as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(socket_path(folder, "a.sock")))
    assert not folder.exists()


def test_a_temporary_folder_too_deep_for_a_socket_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with private_socket_dir("a.sock") as folder:
        assert folder.parent == Path("/tmp")
    assert list(deep.iterdir()) == []


def test_a_folder_asked_for_that_is_too_deep_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with pytest.raises(SocketPathError, match="at most 107 bytes"), private_socket_dir("a.sock", parent=deep):
        pass
    assert list(deep.iterdir()) == []


@given(characters=st.text(alphabet="aé日", max_size=30), length_bytes=st.integers(100, 115))
def test_the_limit_is_the_kernel_s_and_counts_bytes(characters: str, length_bytes: int) -> None:
    path = f"/{characters}".ljust(length_bytes - len(characters.encode()) + len(characters), "a")
    assert len(os.fsencode(path)) == length_bytes
    fits = length_bytes <= MAX_SOCKET_PATH_BYTES
    if fits:
        assert socket_path(Path("/"), path[1:]) == Path(path)
    else:
        with pytest.raises(SocketPathError):
            socket_path(Path("/"), path[1:])
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(OSError, match=None if fits else "too long") as refused:
        client.connect(path)
    assert isinstance(refused.value, FileNotFoundError) == fits
