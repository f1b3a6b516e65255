"""A real Kerberos as a process: MIT's KDC, with principals whose keys are in keytabs.

`make servers` brings it by Debian's packages into the checkout's `.cache`. Where it is not there, tests are skipped.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.object_store.bucket import running
from tests.support.repository import ROOT

from understudy_shared.base.sockets import free_port

REALM = "UNDERSTUDY.TEST"
FOLDER = ROOT / ".cache" / "kerberos" / "usr"

_LIBRARIES = FOLDER / "lib" / "x86_64-linux-gnu"
_START_LIMIT_S = 60
_CONF = """
[libdefaults]
 default_realm = {realm}
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
[realms]
 {realm} = {{
  kdc = 127.0.0.1:{port}
 }}
[domain_realm]
 localhost = {realm}
[dbmodules]
 db_module_dir = {plugins}
"""
_KDC_CONF = """
[kdcdefaults]
 kdc_listen = ""
 kdc_tcp_listen = 127.0.0.1:{port}
[realms]
 {realm} = {{
  database_name = {folder}/principal
  key_stash_file = {folder}/stash
  acl_file = {folder}/acl
 }}
"""


class Kerberos:
    """A KDC. `conf` is what its clients read (KRB5_CONFIG)."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.conf, self.port = folder, folder / "krb5.conf", free_port()
        names = {"realm": REALM, "port": self.port, "folder": folder}
        self.conf.write_text(_CONF.format(**names, plugins=_LIBRARIES / "krb5" / "plugins" / "kdb"))
        (folder / "kdc.conf").write_text(_KDC_CONF.format(**names))
        self.environ = {
            **os.environ,
            "KRB5_CONFIG": str(self.conf),
            "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
            "LD_LIBRARY_PATH": str(_LIBRARIES),
        }
        self._run("sbin/kdb5_util", "create", "-s", "-r", REALM, "-P", "tests")

    def keytab(self, *principals: str) -> Path:
        """Add principals with new keys, and return a file of these."""
        path = self._folder / f"{principals[0].replace('/', '-')}.keytab"
        for each in principals:
            self._run("sbin/kadmin.local", "addprinc", "-randkey", each)
        self._run("sbin/kadmin.local", "ktadd", "-k", str(path), *principals)
        return path

    def tickets(self, principal: str, keytab: Path, *, lifetime: str = "1h") -> Path:
        path = self._folder / f"{principal}.cache"
        self._run("bin/kinit", "-c", str(path), "-l", lifetime, "-k", "-t", str(keytab), principal)
        return path

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [FOLDER / program, *arguments], env=self.environ, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def kerberos(folder: Path) -> Iterator[Kerberos]:
    """Run a KDC until the end of the block. Skip the test on a machine without one."""
    if not (FOLDER / "sbin" / "krb5kdc").exists():
        pytest.skip("no KDC: `make servers` brings it")
    found = Kerberos(folder)
    command = [str(FOLDER / "sbin" / "krb5kdc"), "-n"]
    with running(command, folder / "kdc.log", port=found.port, limit_s=_START_LIMIT_S, environ=found.environ):
        yield found
