"""Certificates of a test's own authorities, made by openssl. Skips a test where there is no openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Certificate(NamedTuple):
    """Two files in PEM format."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates. `file` is what those who trust it need."""

    def __init__(self, folder: Path, name: str) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("no openssl")
        self._folder = folder / name
        self._folder.mkdir()
        self.file, self._key = self._folder / "authority.pem", self._folder / "authority.key"
        new: list[str | Path] = ["-keyout", self._key, "-out", self.file, "-subj", f"/CN={name}", "-days", "2"]
        _openssl("req", "-x509", *_NEW_KEY, *new, "-addext", "keyUsage=critical,keyCertSign,cRLSign")

    def issue(self, name: str, *, of: str = "IP:127.0.0.1", days: int = 2) -> Certificate:
        """A certificate for the subjects in `of`; with -1 day it has expired."""
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        request, extension = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extension.write_text(f"subjectAltName={of}\nauthorityKeyIdentifier=keyid\n")
        _openssl("req", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        signed: list[str | Path] = ["-CA", self.file, "-CAkey", self._key, "-CAcreateserial", "-extfile", extension]
        _openssl("x509", "-req", "-in", request, *signed, "-out", certificate, "-days", days)
        return Certificate(certificate, key)


def _openssl(*arguments: str | Path | int) -> None:
    command = ["openssl", *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
