"""The settings of every service that uses the bus: which Redis, how to reach it, and how messages are signed.

The TLS files and the password from the settings are put into the URL of the Redis. So a password is never on a command
line, and all later code needs only one URL.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from understudy_shared.base.errors import SettingsError
from understudy_shared.base.masking import is_ambiguous, masked
from understudy_shared.base.service_settings import ServiceSettings
from understudy_shared.bus.message_auth import MessageAuth, message_auth
from understudy_shared.settings import BusFields

MAX_PASSWORD_BYTES = 4096

_WITH_TLS = ("rediss", "rediss+sentinel")


def with_tls_files(url: str, *, ca_file: Path | None, cert_file: Path | None, key_file: Path | None) -> str:
    """Add these files to the URL as options, also for the sentinels if they use TLS. Raises SettingsError."""
    named = {"ssl_ca_certs": ca_file, "ssl_certfile": cert_file, "ssl_keyfile": key_file}
    options = {name: str(path) for name, path in named.items() if path is not None}
    if not options or is_ambiguous(url):  # the bus refuses an ambiguous URL, with the reason
        return url
    parts = urlsplit(url)
    if parts.scheme not in _WITH_TLS:
        raise SettingsError(
            "files for TLS are given, but the URL asks for no TLS",
            where=masked(url),
            fix="Write rediss:// (with Sentinel: rediss+sentinel://), or leave out the files",
        )
    if key_file is not None and cert_file is None:
        raise SettingsError("redis_key_file is given without redis_cert_file", where=str(key_file), fix="Give both")
    found = dict(parse_qsl(parts.query, keep_blank_values=True))
    twice = sorted(options.keys() & found.keys())
    if twice:
        raise SettingsError(f"{twice[0]} is in the URL and in the settings", where=masked(url), fix="Give it once")
    if found.get("sentinel_ssl", "").lower() in {"1", "true", "yes", "on"}:
        options |= {f"sentinel_{name}": path for name, path in options.items() if f"sentinel_{name}" not in found}
    before, hash_sign, fragment = url.partition("#")
    return f"{before}{'&' if '?' in before else '?'}{urlencode(options, safe='/')}{hash_sign}{fragment}"


def with_password_file(url: str, file: Path | None) -> str:
    """Add the password to the URL: the first line of the file. Raises SettingsError, which never shows the password."""
    if file is None or is_ambiguous(url):
        return url
    parts = urlsplit(url)
    login, _, place = parts.netloc.rpartition("@")
    user, colon, _ = login.partition(":")
    if colon or not parts.scheme:
        what = "a password is in the URL and in a file" if colon else "a password needs a URL with a scheme"
        fix = "Write redis://user@host:port/db, and the password in the file"
        raise SettingsError(what, where=masked(url), fix=fix)
    password = quote(_first_line(file), safe="")
    rest = url.partition("://")[2].removeprefix(parts.netloc)
    return f"{parts.scheme}://{user}:{password}@{place}{rest}"


def _first_line(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_PASSWORD_BYTES + 1)
        line = text.split(b"\n", 1)[0].rstrip(b"\r").decode()
    except OSError as error:
        what = f"the file with the password of Redis cannot be read: {error.strerror}"
        raise SettingsError(what, where=str(file), fix="Check the path and its permissions") from None
    except UnicodeDecodeError:
        raise SettingsError("the password of Redis is not UTF-8", where=str(file), fix="Write it as text") from None
    if not line or len(text) > MAX_PASSWORD_BYTES:
        what = "the file with the password of Redis is " + ("too long" if line else "empty")
        raise SettingsError(what, where=str(file), fix="Write the password, and nothing else, in its first line")
    return line


class BusSettings(BusFields, ServiceSettings):
    """The bus settings that nodes and routers have in common."""

    @property
    def redis_url(self) -> str:
        """The URL with all of these settings in it: pass it to masked() before showing it. Raises SettingsError."""
        url = with_password_file(self.redis, self.redis_password_file)
        return with_tls_files(
            url, ca_file=self.redis_ca_file, cert_file=self.redis_cert_file, key_file=self.redis_key_file
        )

    def message_auth(self, application_id: str, *, sender: str) -> MessageAuth:
        """Return the signatures of this process, named `sender`. Raises SettingsError for an unusable key file."""
        return message_auth(
            application_id, self.gossip_key_file, accept_unsigned=self.gossip_accept_unsigned, sender=sender
        )
