"""Where `make validators` puts generators of clients."""

from __future__ import annotations

from tests.support.repository import ROOT

_CLIENTS = ROOT / ".cache" / "clients"
GENERATOR_JAR = _CLIENTS / "openapi-generator-cli.jar"
NODE_MODULES = _CLIENTS / "node_modules"
