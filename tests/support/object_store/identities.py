"""Providers of identities, as clouds give them to pods and machines, and a store that wants their tokens: one server.

Tokens are `token-1`, `token-2` and so on. Each has `SECRET` in it, as has all else that must never be said.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SECRET = "hush"
CONTENT = b"v1\n{}"


class Identities(ThreadingHTTPServer):
    """The server. Tokens end after `lasts_s`; a provider answers with `status`, and not before `answers` is set."""

    daemon_threads = True
    lasts_s = 3_600
    status = 200

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.answers = threading.Event()
        self.answers.set()
        self.asked = 0
        self.shown: list[str] = []
        """The tokens that came to the store."""
        self._noting = threading.Lock()
        self.proof = folder / "proof"
        self.proof.write_text(f"{SECRET}-proof")
        self.federation = folder / "federation.json"
        pool = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/x"
        described = {
            "type": "external_account",
            "audience": pool,
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"{self.url}/sts/token",
            "credential_source": {"file": str(self.proof)},
        }
        self.federation.write_text(json.dumps(described))

    def environment(self, identity: str) -> dict[str, str]:
        """Return what a process finds in its environment where it has that identity."""
        principal = {"AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t", "AZURE_AUTHORITY_HOST": self.url}
        found = {
            "instance": {"AWS_METADATA_ENDPOINT": self.url},
            "container": {
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{self.url}/v1/credentials",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(self.proof),
            },
            "managed": {"IDENTITY_ENDPOINT": f"{self.url}/metadata/identity/oauth2/token"},
            "workload": {**principal, "AZURE_FEDERATED_TOKEN_FILE": str(self.proof)},
            "principal": {**principal, "AZURE_CLIENT_SECRET": f"{SECRET}-principal"},
            "metadata": {"GCE_METADATA_HOST": self.url.removeprefix("http://")},
            "federation": {"GOOGLE_APPLICATION_CREDENTIALS": str(self.federation)},
        }[identity]
        store = f"{self.url}/store"
        endpoints = {"AWS_ENDPOINT_URL": store, "AZURE_STORAGE_ENDPOINT": store, "GOOGLE_BASE_URL": store}
        return found | endpoints | {"AWS_ALLOW_HTTP": "true"}

    def token(self) -> str:
        """Make another token."""
        with self._noting:
            self.asked += 1
            return f"{SECRET}-token-{self.asked}"


class _Handler(BaseHTTPRequestHandler):
    server: Identities
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path.startswith("/store"):
            bearer = self.headers.get("authorization", "").partition("Bearer ")[2]
            self.server.shown.append(self.headers.get("x-amz-security-token", bearer))
            self._reply(200, CONTENT)
            return
        self.server.answers.wait(30)
        self._reply(self.server.status, self._of_provider())

    do_POST = do_PUT = do_GET  # noqa: N815  # the providers tell them apart; here they need not

    def _of_provider(self) -> bytes:
        if self.path.startswith("/latest/api/token"):
            return SECRET.encode()
        if self.path.endswith("/security-credentials/"):
            return b"role"
        token, lasts_s = self.server.token(), self.server.lasts_s
        ends = datetime.now(UTC) + timedelta(seconds=lasts_s)
        keys = {"AccessKeyId": "AKID", "SecretAccessKey": f"{SECRET}-key", "Token": token, "Code": "Success"}
        bearer = {"access_token": token, "expires_in": lasts_s, "expires_on": str(int(time.time() + lasts_s))}
        exchanged = {"token_type": "Bearer", "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}
        return json.dumps({**keys, "Expiration": ends.strftime("%Y-%m-%dT%H:%M:%SZ"), **bearer, **exchanged}).encode()

    def _reply(self, status: int, body: bytes) -> None:
        with suppress(OSError):  # whoever asked may be gone
            self.send_response_only(status)
            for name, value in (("last-modified", "Wed, 21 Oct 2026 07:28:00 GMT"), ("etag", '"x"')):
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)


@contextmanager
def identities(folder: Path) -> Iterator[Identities]:
    """The server, until the end of the block."""
    server = Identities(folder)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.answers.set()
        server.shutdown()
        thread.join()
        server.server_close()
