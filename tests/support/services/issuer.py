"""An issuer of tokens as services meet one: real keys, and a key set over HTTP on loopback."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from tests.support.services.guarded import Keys

AUDIENCE = "understudy"


class SigningKey:
    """A private key with its name, and its public half as a key set has it."""

    def __init__(self, kid: str, kind: str = "RS256", *, bits: int = 2048) -> None:
        self.kid, self.algorithm = kid, kind
        self.private: Any
        form: Any
        if kind == "ES256":
            self.private, form = ec.generate_private_key(ec.SECP256R1()), ECAlgorithm
        elif kind == "EdDSA":
            self.private, form = ed25519.Ed25519PrivateKey.generate(), OKPAlgorithm
        else:
            self.private, form = rsa.generate_private_key(public_exponent=65537, key_size=bits), RSAAlgorithm
        self.jwk: dict[str, Any] = {**json.loads(form.to_jwk(self.private.public_key())), "kid": kid, "use": "sig"}


@cache
def usual_keys() -> tuple[SigningKey, ...]:
    """Those that every issuer begins with: making one takes a while."""
    return SigningKey("first"), SigningKey("curved", "ES256")


class TokenIssuer:
    """Signs tokens, and answers with its key set. `asked` counts the questions; `answer` may be set to another one."""

    def __init__(self, port: int = 0) -> None:
        self.keys = [*usual_keys()]
        self.asked = 0
        self.status = 200
        self.answer: bytes | None = None
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                body = issuer.key_set() if issuer.answer is None else issuer.answer
                self.send_response(issuer.status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is the library's
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def key_set(self) -> bytes:
        return json.dumps({"keys": [key.jwk for key in self.keys]}).encode()

    def claims(self, **more: object) -> dict[str, object]:
        """Those of a token that is good for an hour; None takes one out."""
        made = {"iss": self.url, "aud": AUDIENCE, "sub": "alice", "exp": int(time.time()) + 3600, **more}
        return {name: value for name, value in made.items() if value is not None}

    def token(self, *, key: SigningKey | None = None, headers: Mapping[str, Any] | None = None, **more: object) -> str:
        key = key or self.keys[0]
        named = {name: value for name, value in {"kid": key.kid, **(headers or {})}.items() if value is not None}
        return jwt.encode(self.claims(**more), key.private, key.algorithm, named)

    def in_toml(self, name: str = "corp", more: str = "") -> str:
        """The issuer as a file of credentials has it."""
        return (
            f'\n[issuers.{name}]\nissuer = "{self.url}"\naudience = ["{AUDIENCE}"]\nkeys_url = "{self.url}/keys"\n'
            'roles_claim = "groups"\nroles = {readers = ["reader"], watchers = ["monitor"], chiefs = ["admin"]}\n'
            f"{more}\n"
        )


@contextmanager
def token_issuer(keys: Keys | None = None) -> Iterator[TokenIssuer]:
    """An issuer, which the file of `keys` trusts."""
    issuer = TokenIssuer()
    try:
        if keys is not None:
            text = keys.path.read_text() if keys.path.exists() else ""
            keys.path.write_text(issuer.in_toml() + text)
        yield issuer
    finally:
        issuer.close()
