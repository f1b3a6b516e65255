"""Makes settings that hold a URL safe to show (pure). Every error, log line, document and repr uses this.

Rule: mask first, parse later. A login that was not percent-encoded makes a parser take the password for a host, a path
or a fragment, so nothing here trusts a parser: only what has a known, harmless form is shown, and the rest is `***`.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

HIDDEN = "***"

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}")
_HOST = r"(?:\w[\w.-]*|\[[0-9A-Fa-f:.]{2,45}\])(?::\d{1,5})?"
_PLACE = re.compile(rf"(?:{_HOST}(?:,{_HOST})*,?)?")
_USER = re.compile(r"[\w.+-]{0,64}")
_REDIS_PATH = re.compile(r"[\w./-]*")
_HOST_PORT = r"(?:\w[\w.-]*|\[[0-9A-Fa-f:.]{2,45}\]):\d{1,5}"
_NO_SCHEME = re.compile(rf"{_HOST_PORT}(?:,{_HOST_PORT})*(?:/\d*)?")
_CHAIN = re.compile(r"(?:[a-z0-9]{1,32}::)*")
"""Prefixes that some libraries allow before a URL: `filecache::s3://...`."""

_CONTAINER_SCHEMES = frozenset(("abfs", "abfss", "az", "azure", "wasb", "wasbs", "hdfs", "viewfs"))
"""Schemes in which text without a colon before the `@` names a container or a user: it is not a secret."""

_SECRET_WORD = re.compile(r"(?i)(?:pass|pwd|secret|token|credential|key|sig|auth)[\w.%-]*\s*[=:]")
_OPTION_NAME = re.compile(r"[A-Za-z_]{1,40}")
_OPTION_VALUES = {
    "username": re.compile(r"[\w.+-]{0,64}"),
    "client_name": re.compile(r"[\w.+-]{0,64}"),
    "db": re.compile(r"\d{0,6}"),
    "protocol": re.compile(r"\d"),
    "max_connections": re.compile(r"\d{0,9}"),
    "health_check_interval": re.compile(r"[\d.]{0,9}"),
    "socket_timeout": re.compile(r"[\d.]{0,9}"),
    "socket_connect_timeout": re.compile(r"[\d.]{0,9}"),
    "ssl": re.compile(r"(?i)1|0|true|false|yes|no|on|off"),
    "ssl_cert_reqs": re.compile(r"none|optional|required"),
    "ssl_check_hostname": re.compile(r"(?i)1|0|true|false|yes|no|on|off"),
    "ssl_ca_certs": re.compile(r"[\w./-]*"),
    "ssl_certfile": re.compile(r"[\w./-]*"),
    "ssl_keyfile": re.compile(r"[\w./-]*"),
}
"""Options of a URL whose values are shown, and their form. Any other option may be a mistyped password."""

_LOGIN_IN_TEXT = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,31}://)([^\s:@/?#]{0,64}):\S*@")
_SECRET_IN_TEXT = re.compile(
    r"(?i)([?&;#](?:sig|[\w.-]*(?:pass|pwd|secret|token|credential|signature)[\w.-]*)=)[^\s&'\")]+"
)


class _Parts(NamedTuple):
    """The parts of a URL that parses without ambiguity."""

    scheme: str
    login: str | None
    place: str
    path: str
    query: str | None
    fragment: str | None


def masked(url: str) -> str:
    """Return the URL of a server without its secrets. Text that is not a URL is shown only as a plain `host:port`."""
    if "://" not in url:
        return url if _NO_SCHEME.fullmatch(url) else HIDDEN
    parts = _parts(url)
    if parts is None:
        scheme = url.partition("://")[0]
        return f"{scheme}://{HIDDEN}" if _SCHEME.fullmatch(scheme) else HIDDEN
    path = parts.path if _REDIS_PATH.fullmatch(parts.path) else f"/{HIDDEN}"
    return _joined(parts, path)


def masked_location(text: str) -> str:
    """Return the location of files without its secrets: a path or a URL."""
    chain = _CHAIN.match(text)
    assert chain is not None, "it matches nothing, too"
    rest = text[chain.end() :]
    if "://" not in rest:
        return HIDDEN if has_login(rest) else text
    parts = _parts(rest)
    if parts is None:
        scheme = rest.partition("://")[0]
        return f"{chain[0]}{scheme}://{HIDDEN}" if _SCHEME.fullmatch(scheme) else HIDDEN
    return chain[0] + _joined(parts, f"/{HIDDEN}" if _SECRET_WORD.search(parts.path) else parts.path)


def has_login(path: str) -> bool:
    """Whether a local path looks like a mistyped URL with a login, such as `s3:/key:secret@bucket`."""
    if path.startswith(("/", ".", "~")) and not path.startswith("//"):
        return False
    before, at, _ = path.rpartition("@")
    return bool(at and ":" in before) or _SECRET_WORD.search(path) is not None


def is_ambiguous(url: str) -> bool:
    """Whether a parser would take a part of the login for something else."""
    return "://" in url and _parts(url) is None


def words_of(error: BaseException, url: str) -> str:
    """Return the text of a library's error about a URL; only the error's type when it repeats a secret of the URL."""
    text = str(error) or type(error).__name__
    if repeats(text, url):
        return f"{type(error).__name__}, whose text repeats what is hidden here"
    return masked_text(text)


def repeats(text: str, url: str) -> bool:
    """Whether a text contains any part of a URL that `masked` hides."""
    shown = masked(url)
    if url == shown:
        return False
    known, folded = set(_pieces(shown)), text.casefold()
    return any(piece in folded for piece in _pieces(url) if piece not in known)


def masked_text(text: str) -> str:
    """Remove the logins and secrets of complete URLs from free text, such as a log line or a traceback."""
    if "://" in text:
        text = _LOGIN_IN_TEXT.sub(rf"\1\2:{HIDDEN}@", text)
        text = _SECRET_IN_TEXT.sub(rf"\1{HIDDEN}", text)
    return text


def masked_value(value: object) -> str:
    """Print the value of a setting for an error; of a container only its type, because it may hold a secret."""
    if isinstance(value, str):
        return repr(masked_location(value))
    return repr(value) if value is None or isinstance(value, (bool, int, float)) else f"a {type(value).__name__}"


def _parts(url: str) -> _Parts | None:
    """Split a URL into its parts; None when an `@` stands behind the end of the host, or when the host is malformed."""
    scheme, _, rest = url.partition("://")
    end = next((index for index, character in enumerate(rest) if character in "/?#"), len(rest))
    authority, tail = rest[:end], rest[end:]
    login, at, place = authority.rpartition("@")
    if not _SCHEME.fullmatch(scheme) or "@" in tail or not _PLACE.fullmatch(place):
        return None
    before, hash_sign, fragment = tail.partition("#")
    path, question, query = before.partition("?")
    return _Parts(
        scheme, login if at else None, place, path, query if question else None, fragment if hash_sign else None
    )


def _joined(parts: _Parts, path: str) -> str:
    query = "" if parts.query is None else "?" + "&".join(map(_option, re.split("[&;]", parts.query)))
    fragment = "" if parts.fragment is None else f"#{HIDDEN}"
    login = "" if parts.login is None else f"{_login(parts.scheme, parts.login)}@"
    return f"{parts.scheme}://{login}{parts.place}{path}{query}{fragment}"


def _login(scheme: str, login: str) -> str:
    user, colon, _ = login.partition(":")
    is_known = _USER.fullmatch(user) is not None and (bool(colon) or scheme.lower() in _CONTAINER_SCHEMES)
    return (user if is_known else HIDDEN) + (f":{HIDDEN}" if colon else "")


def _option(text: str) -> str:
    name, equals, value = text.partition("=")
    if not text:
        return ""
    if not equals or not _OPTION_NAME.fullmatch(name):
        return HIDDEN
    form = _OPTION_VALUES.get(name.lower().removeprefix("sentinel_"))
    return f"{name}={value if form is not None and form.fullmatch(value) else HIDDEN}"


def _pieces(text: str) -> list[str]:
    """List every piece of a URL that a parser could take for a part of it, and the words in those pieces."""
    both = f"{text} {unquote(text)}".casefold()
    found = re.split(r"[/?#@:&=;,\s]+", both) + re.split(r"[\W_]+", both)
    return [piece for piece in found if piece]
