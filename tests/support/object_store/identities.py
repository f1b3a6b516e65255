"""Providers of identities, as clouds give them to pods and machines, and a store that wants their tokens: one
server, and another by TLS for the one that is asked so.

Tokens are `token-1`, `token-2` and so on. Each has `SECRET` in it, as has all else that must never be said.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock, Thread
from urllib.parse import parse_qs, urlsplit

from tests.support.services.certificates import Signer

SECRET = "hush"
CONTENT = b"v1\n{}"
ROLE = "arn:aws:iam::123456789012:role/reader"

_STS_ANSWER = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
  <AssumeRoleWithWebIdentityResult>
    <Audience>sts.amazonaws.com</Audience>
    <AssumedRoleUser>
      <AssumedRoleId>AROACLKWSDQRAOEXAMPLE:session</AssumedRoleId>
      <Arn>arn:aws:sts::123456789012:assumed-role/reader/session</Arn>
    </AssumedRoleUser>
    <Credentials>
      <SessionToken>{token}</SessionToken>
      <SecretAccessKey>{key}</SecretAccessKey>
      <Expiration>{ends}</Expiration>
      <AccessKeyId>ASIAEXAMPLE</AccessKeyId>
    </Credentials>
    <Provider>https://issuer.test</Provider>
  </AssumeRoleWithWebIdentityResult>
  <ResponseMetadata><RequestId>ad4156e9-bce1-11e2-82e6-6b6efEXAMPLE</RequestId></ResponseMetadata>
</AssumeRoleWithWebIdentityResponse>"""
_STS_REFUSAL = """<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
  <Error>
    <Type>Sender</Type>
    <Code>InvalidIdentityToken</Code>
    <Message>Couldn't retrieve verification key from your identity provider</Message>
  </Error>
  <RequestId>ad4156e9-bce1-11e2-82e6-6b6efEXAMPLE</RequestId>
</ErrorResponse>"""


class Identities(ThreadingHTTPServer):
    """The server. Tokens end after `lasts_s`; a provider answers with `status`, and not before `answers` is set."""

    daemon_threads = True
    lasts_s = 3_600
    status = 200

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), type("_Handler", (_Handler,), {"identities": self}))
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.answers = Event()
        self.answers.set()
        self.asked = 0
        self.shown: list[str] = []
        """The tokens that came to the store."""
        self._noting = Lock()
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
        self.impersonation = folder / "impersonation.json"
        impersonated = {
            "type": "impersonated_service_account",
            "service_account_impersonation_url": f"{self.url}/v1/serviceAccounts/reader@p.test:generateAccessToken",
            "source_credentials": described | {"token_url": f"{self.url}/source/token"},
        }
        self.impersonation.write_text(json.dumps(impersonated))
        authority = Signer(folder)
        self.authority = authority.file
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*authority.issue("sts"))
        self.sts = _Sts(self, context)

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
            "impersonation": {"GOOGLE_APPLICATION_CREDENTIALS": str(self.impersonation)},
            "web": {
                "AWS_WEB_IDENTITY_TOKEN_FILE": str(self.proof),
                "AWS_ROLE_ARN": ROLE,
                "AWS_ENDPOINT_URL_STS": f"https://localhost:{self.sts.server_address[1]}",
                "SSL_CERT_FILE": str(self.authority),
            },
        }[identity]
        store = f"{self.url}/store"
        endpoints = {"AWS_ENDPOINT_URL": store, "AZURE_STORAGE_ENDPOINT": store, "GOOGLE_BASE_URL": store}
        return found | endpoints | {"AWS_ALLOW_HTTP": "true"}

    def token(self) -> str:
        with self._noting:
            self.asked += 1
            return f"{SECRET}-token-{self.asked}"


class _Sts(ThreadingHTTPServer):
    """The provider of AWS, which is asked by TLS alone."""

    daemon_threads = True

    def __init__(self, identities: Identities, context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), type("_Handler", (_Handler,), {"identities": identities}))
        self._context = context

    def get_request(self) -> tuple[socket.socket, object]:
        connection, address = super().get_request()
        return self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that have left."""


class _Handler(BaseHTTPRequestHandler):
    identities: Identities
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path.startswith("/store"):
            bearer = self.headers.get("authorization", "").partition("Bearer ")[2]
            self.identities.shown.append(self.headers.get("x-amz-security-token", bearer))
            self._reply(200, CONTENT)
            return
        self.identities.answers.wait(30)
        self._reply(*self._of_provider())

    do_POST = do_PUT = do_GET  # noqa: N815  # the providers tell them apart; here they need not

    def _of_provider(self) -> tuple[int, bytes]:
        status, query = self.identities.status, parse_qs(urlsplit(self.path).query)
        if self.path.startswith("/latest/api/token"):
            return status, SECRET.encode()
        if self.path.endswith("/security-credentials/"):
            return status, b"role"
        if isinstance(self.server, _Sts) and (query["RoleArn"], query["WebIdentityToken"]) != ([ROLE], [self._proof()]):
            return 400, _STS_REFUSAL.encode()
        is_source = self.path.startswith("/source")
        token, lasts_s = "source" if is_source else self.identities.token(), self.identities.lasts_s
        ends = datetime.now(UTC) + timedelta(seconds=lasts_s)
        keys = {"AccessKeyId": "AKID", "SecretAccessKey": f"{SECRET}-key", "Token": token, "Code": "Success"}
        bearer = {"access_token": token, "expires_in": lasts_s, "expires_on": str(int(time.time() + lasts_s))}
        exchanged = {"token_type": "Bearer", "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}
        at = ends.strftime("%Y-%m-%dT%H:%M:%SZ")
        if isinstance(self.server, _Sts):
            return status, _STS_ANSWER.format(token=token, key=keys["SecretAccessKey"], ends=at).encode()
        impersonated = {"accessToken": token, "expireTime": at}
        return status, json.dumps({**keys, "Expiration": at, **bearer, **exchanged, **impersonated}).encode()

    def _proof(self) -> str:
        return self.identities.proof.read_text()

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
    identities = Identities(folder)
    servers = (identities, identities.sts)
    threads = [Thread(target=each.serve_forever, kwargs={"poll_interval": 0.01}) for each in servers]
    for thread in threads:
        thread.start()
    try:
        yield identities
    finally:
        identities.answers.set()
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()
