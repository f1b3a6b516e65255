"""A command that lacks packages is started again by uv, where uvx made its environment, and nowhere else."""

from __future__ import annotations

import pytest

from understudy.commands.group import STARTED_AGAIN, is_by_uvx

PREFIX = "/cache/uv/archive/1"


@pytest.mark.parametrize(
    ("environ", "by_uvx"),
    [
        ({"UV": "/bin/uv"}, True),
        ({"UV": "/bin/uv", "VIRTUAL_ENV": "/home/a/.venv"}, True),
        ({"UV": "/bin/uv", "VIRTUAL_ENV": PREFIX}, False),
        ({"UV": "/bin/uv", "UV_RUN_RECURSION_DEPTH": "1"}, False),
        ({"UV": "/bin/uv", STARTED_AGAIN: "1"}, False),
        ({}, False),
    ],
    ids=["uvx", "uvx beside an active one", "an active one", "uv run", "started again", "without uv"],
)
def test_only_an_environment_that_uvx_made_gets_an_extra(environ: dict[str, str], by_uvx: bool) -> None:
    assert is_by_uvx(environ, PREFIX) is by_uvx
