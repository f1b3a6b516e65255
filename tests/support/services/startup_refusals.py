"""What `understudy serve` says when it refuses to start: the error, and that its port never stayed open."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from understudy_node.fleet.starting import serve
from understudy_node.node import Node
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.sockets import free_port


def _must_not_start(node: Node) -> None:
    raise AssertionError(f"{node.settings.checkpoint} was not refused")


def refusal_to_serve(checkpoint: str | Path, data_dir: Path) -> UnderstudyError:
    """The error that ends `serve` before it serves; it must say what, where, and what to do."""
    port = free_port()
    with pytest.raises(UnderstudyError) as caught:
        serve(
            {"checkpoint": str(checkpoint), "data_dir": data_dir, "port": port, "checkpoint_wait_ms": 0},
            started=_must_not_start,
        )
    error = caught.value
    assert error.what, error
    assert error.where, error
    assert error.fix, error
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
    return error
