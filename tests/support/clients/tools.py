"""Where `make validators` puts generators of clients."""

from __future__ import annotations

from pathlib import Path

_CLIENTS = Path(__file__).parents[3] / ".cache" / "clients"
GENERATOR_JAR = _CLIENTS / "openapi-generator-cli.jar"
NODE_MODULES = _CLIENTS / "node_modules"
