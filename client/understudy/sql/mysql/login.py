"""Logins: the password of a user is an API key or a token, which the servers of the stores are asked about.

The method is `caching_sha2_password`, the default of MySQL 8, by its full exchange: over TLS the key comes as it is;
without TLS, which only loopback has, encrypted for a key pair of this process, where the client asks for it. The name
of the user is free.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final

from mysql_mimic.auth import AuthInfo, AuthPlugin, Decision, Forbidden, IdentityProvider, Success, User
from mysql_mimic.utils import nonce

from understudy.client.errors import UnauthenticatedError, UsageError
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.extras import PACKAGE, MissingExtraError

METHOD: Final = "caching_sha2_password"
_NONCE_BYTES: Final = 20
_FULL_EXCHANGE, _ASKS_FOR_KEY = b"\x04", b"\x02"
_KEY_BITS: Final = 2048


class Login(str):
    """The name of a user who has logged in, with the key or token that was shown, which may be empty."""

    __slots__ = ("key",)
    key: str

    def __new__(cls, name: str, key: str) -> Login:
        made = super().__new__(cls, name)
        made.key = key
        return made

    def __repr__(self) -> str:
        return f"Login({str(self)!r})"


Check = Callable[[str], Awaitable[None]]
"""A function that asks the servers about a key. Raises the error of one that they do not take."""


class KeyPair:
    """A pair of keys by which passwords come encrypted. The package `cryptography` makes it."""

    def __init__(self) -> None:
        """Make it. Raises MissingExtraError."""
        try:
            from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
            from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415
        except ImportError:
            raise MissingExtraError(
                "logins without TLS need cryptography, which is not installed",
                where=f"{PACKAGE}[sql-server]",
                extras="sql-server",
            ) from None
        self._private = rsa.generate_private_key(public_exponent=65537, key_size=_KEY_BITS)
        pem, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        self.public_pem: bytes = self._private.public_key().public_bytes(pem, form)

    def decrypted(self, data: bytes) -> bytes:
        """Return what was encrypted. Raises ValueError."""
        from cryptography.hazmat.primitives.asymmetric import padding  # noqa: PLC0415
        from cryptography.hazmat.primitives.hashes import SHA1  # noqa: PLC0415  # the protocol has it so

        made = padding.OAEP(padding.MGF1(SHA1()), SHA1(), None)  # noqa: S303
        return self._private.decrypt(data, made)


class KeyLogin(AuthPlugin):  # type: ignore[misc]
    """The method of one connection."""

    name = client_plugin_name = METHOD

    def __init__(self, check: Check, pair: KeyPair | None, is_tls: Callable[[], bool], *, needs_key: bool) -> None:
        """Prepare it. `pair` is None where passwords come over TLS alone; `needs_key`: an empty one is refused."""
        self._check, self._pair, self._is_tls, self._needs_key = check, pair, is_tls, needs_key

    async def auth(self, auth_info: AuthInfo | None = None) -> AsyncGenerator[Decision, AuthInfo]:
        """See `AuthPlugin`: yield what is sent to the client, last the decision."""
        challenge = nonce(_NONCE_BYTES)
        if auth_info is None:
            auth_info = yield challenge + b"\x00"
        else:
            challenge = (auth_info.handshake_auth_data or b"").rstrip(b"\x00")
        if self._pair is None and not self._is_tls():
            yield Forbidden("This server takes logins over TLS alone: switch TLS on in the client")
            return
        name, key = auth_info.username, b""
        if auth_info.data.rstrip(b"\x00"):  # an empty password has no proof
            auth_info = yield _FULL_EXCHANGE
            key = auth_info.data
            if key == _ASKS_FOR_KEY and self._pair is not None:
                auth_info = yield self._pair.public_pem
                try:
                    key = _unmasked(self._pair.decrypted(auth_info.data), challenge)
                except ValueError:
                    yield Forbidden("The password cannot be decrypted: a token is too long without TLS; a key is not")
                    return
        yield await self._decided(name, key.rstrip(b"\x00"))

    async def _decided(self, name: str, shown: bytes) -> Decision:
        if not shown and self._needs_key:
            return Forbidden(f"Access denied for user '{name}': the password is an API key or a token")
        try:
            key = shown.decode("ascii")
            await self._check(key)
        except (UnicodeDecodeError, UsageError):
            return Forbidden(f"Access denied for user '{name}': the password is no API key")
        except UnauthenticatedError as error:
            said = f"the password is an API key or a token, and the servers refuse it: {error.what}"
            return Forbidden(f"Access denied for user '{name}': {said}")
        except UnderstudyError as error:
            return Forbidden(f"The servers cannot be asked about the key: {error.what}. {error.fix}")
        return Success(Login(name, key))


def _unmasked(data: bytes, mask: bytes) -> bytes:
    return bytes(each ^ mask[at % len(mask)] for at, each in enumerate(data))


class KeyIdentity(IdentityProvider):  # type: ignore[misc]
    """The one method of a connection, for every name of a user."""

    def __init__(self, login: KeyLogin) -> None:
        self._login = login

    def get_plugins(self) -> Sequence[Any]:
        """See `IdentityProvider`."""
        return [self._login]

    async def get_user(self, username: str) -> User:
        """See `IdentityProvider`."""
        return User(name=username, auth_plugin=METHOD)
