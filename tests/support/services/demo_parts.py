"""Stands in for the demo's pipeline, nodes and routers: small processes that behave as the demo expects of them.

`python demo_parts.py COMMAND ARGUMENT...` takes the arguments of the real command. DEMO_BROKEN names the kind of part
that says something and fails.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ANSWER = {
    "store": "aircraft",
    "found": True,
    "value": {"count": 1},
    "watermark": None,
    "version": 1,
    "lag": {"offset_lag": 0},
    "served_by": {"host": "127.0.0.1", "port": 1, "role": "active"},
}


def main() -> None:
    """Fail if the environment asks for it, else serve until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    command, arguments = sys.argv[1], sys.argv[2:]
    broken = os.environ.get("DEMO_BROKEN", "")
    sys.stdout.write(f"{command} starts\n")
    sys.stdout.flush()
    if command == "pipeline":
        _fail(broken == "pipeline")
        commits = Path(os.environ["UNDERSTUDY_CHECKPOINT"]) / "commits"
        commits.mkdir(parents=True)
        (commits / "0").touch()
        threading.Event().wait()
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    port = parser.parse_known_args(arguments)[0].port
    _fail(broken == command)
    ThreadingHTTPServer(("127.0.0.1", port), Replies).serve_forever()


def _fail(is_broken: bool) -> None:
    if is_broken:
        sys.stdout.write("there is no luck today\n")
        sys.exit(3)


class Replies(BaseHTTPRequestHandler):
    """Answers the requests that the demo sends to nodes and routers."""

    def do_GET(self) -> None:
        body = json.dumps(self._document()).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing of it is read."""

    def _document(self) -> dict[str, Any]:
        if self.path == "/admin/v1/lag":
            partitions = [
                {"partition": 0, "node_id": f"node-{number}", "role": role, "state": "RUNNING"}
                for number, role in ((1, "active"), (2, "standby"))
            ]
            return {
                "nodes": [],
                "bus": {"state": "connected", "why": ""},
                "stores": [{"store": "aircraft", "partitions": partitions}],
            }
        if self.path == "/v1/stores":
            return {"stores": []}
        if "/metadata/" in self.path:
            return {"active_host": {"host": "127.0.0.1", "port": int(os.environ["DEMO_ACTIVE"])}}
        return {"ready": True, "reasons": []} if self.path == "/readyz" else ANSWER


if __name__ == "__main__":
    main()
