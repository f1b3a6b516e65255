"""nginx and HAProxy as their packages have them, with a configuration of the test or of a page of the documentation."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.documents.blocks import blocks_of
from tests.support.repository import ROOT
from tests.support.spark.queries import wait_until

from understudy_shared.base.sockets import free_port

PAGE = ROOT / "docs/how-to/load-balancers.md"

_NGINX = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxied;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
{servers}
}}
"""


def documented(language: str, words: str = "") -> str:
    """The only configuration of that proxy on the page that has the words; without words the first one."""
    found = [each.text for each in blocks_of(PAGE.read_text()) if each.language == language and words in each.text]
    assert found, f"no block of {language} with {words!r}"
    assert not words or len(found) == 1
    return found[0]


def here(conf: str, port: int, routers: Sequence[int]) -> str:
    """A configuration with the ports of a test. Routers that a test does not have are left out."""
    conf = re.sub(r"(listen |bind )\S*?8000", rf"\g<1>127.0.0.1:{port}", conf)
    for number, each in enumerate(routers, 1):
        conf = re.sub(rf"\brouter-{number}:8080", f"127.0.0.1:{each}", conf)
    return "".join(line for line in conf.splitlines(keepends=True) if not re.search(r"router-\d:8080", line))


@contextmanager
def nginx(folder: Path, servers: str, *routers: int) -> Iterator[int]:
    """The port of an nginx with these servers, until the block ends."""
    unpacked = ROOT / ".cache/nginx/usr/sbin/nginx"
    program = str(unpacked) if unpacked.exists() else shutil.which("nginx")
    if program is None:
        pytest.skip("skipped: no nginx (make servers unpacks it)")
    folder.mkdir()
    port, conf = free_port(), folder / "nginx.conf"
    conf.write_text(_NGINX.format(folder=folder, servers=here(servers, port, routers)))
    command = [program, "-c", str(conf), "-p", str(folder), "-e", str(folder / "error.log")]
    with _running(command, port):
        yield port


@contextmanager
def haproxy(folder: Path, conf: str, *routers: int) -> Iterator[int]:
    """The port of an HAProxy with this configuration, until the block ends."""
    unpacked = ROOT / ".cache/haproxy/usr/sbin/haproxy"
    program = str(unpacked) if unpacked.exists() else shutil.which("haproxy")
    if program is None:
        pytest.skip("skipped: no haproxy (make servers unpacks it)")
    folder.mkdir()
    port, file = free_port(), folder / "haproxy.cfg"
    file.write_text(here(conf, port, routers))
    libraries = os.pathsep.join(map(str, sorted((ROOT / ".cache/haproxy/usr/lib").glob("*-linux-gnu"))))
    with _running([program, "-db", "-q", "-f", str(file)], port, LD_LIBRARY_PATH=libraries):
        yield port


@contextmanager
def _running(command: Sequence[str], port: int, **environment: str) -> Iterator[None]:
    def listens() -> bool:
        assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", port)) == 0

    with subprocess.Popen(command, env={**os.environ, **environment}) as process:
        try:
            wait_until(listens, what=command[0])
            yield
        finally:
            process.terminate()
