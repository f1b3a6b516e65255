"""Removes secrets from text and JSON before they go into a bundle (pure).

Rule: what may be a secret is hidden, also where that hides something harmless. What this process knows to be a secret,
such as its own key, is hidden wherever it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from understudy_shared.base.masking import HIDDEN, masked_text

_WORD = (
    r"(?:pass(?:word|wd|phrase)?|pwd|secret|token|credentials?|signature|authorization|account[_-]?key"
    r"|(?:api|access|shared|private|sas)[_-]?key(?:[_-]?id)?|(?<![A-Za-z])sig)"
)
_SECRET_NAME = re.compile(rf"(?i){_WORD}s?$")
"""Pattern of the names of members, settings and variables whose values are hidden. Names of files end in `_file`."""

_FORMS = (
    re.compile(r"(usk_[0-9a-f]{16}_)[A-Za-z0-9_-]+"),  # our API keys; the id may be shown
    re.compile(r"()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]*)?"),  # tokens of issuers
    re.compile(r"(\bul1\.)[A-Za-z0-9_-]+"),  # tokens of snapshot leases, which release them, too
    re.compile(r"()\b(?:AKIA|ASIA)[A-Z0-9]{12,}"),
    re.compile(r"(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9+/=._~-]{6,}"),
    re.compile(rf"(?i)({_WORD}[\"']?\s{{0,8}}[=:]\s{{0,8}}[\"']?)(?!\*\*\*)[^\s\"'&;,)\]}}]+"),
    re.compile(r"(-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----)[A-Za-z0-9+/=\s\\:,-]{1,16384}"),
)
_LOGIN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,31}://)[^\s/@\"'?#]{0,256}:[^\s\"']{0,1024}@")
_USER = re.compile(r"(\b(?:https?|rediss?|s3a?|gs)://)[^\s/@:\"'?#]{1,256}@")  # a token in the place of a user
_LEAST_CHARACTERS = 4
"""Shorter secrets of this process would hide every other word."""


class Redaction:
    """The hiding of secrets, those that this process knows among them."""

    def __init__(self, known: Iterable[str]) -> None:
        long = [each for each in known if len(each) >= _LEAST_CHARACTERS]
        secrets = sorted({*long, *(quote(each, safe="") for each in long)}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, secrets))) if secrets else None

    def text(self, text: str) -> str:
        """Return free text without secrets: a log, metrics, an error."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        text = _USER.sub(rf"\1{HIDDEN}@", _LOGIN.sub(rf"\1{HIDDEN}@", masked_text(text)))
        for form in _FORMS:
            text = form.sub(rf"\1{HIDDEN}", text)
        return text

    def value(self, value: Any, name: str = "") -> Any:
        """Return a JSON value without secrets; `name` is that of the member which has it."""
        match value:
            case dict():
                return {self.text(str(key)): self.value(each, str(key)) for key, each in value.items()}
            case list():
                return [self.value(each, name) for each in value]
            case str() if value and is_secret_name(name):
                return HIDDEN
            case str():
                return self.text(value)
        return value


def is_secret_name(name: str) -> bool:
    """Whether a member, a setting or a variable of this name has a secret."""
    return _SECRET_NAME.search(name) is not None


def known_secrets(environ: Mapping[str, str], credential: str) -> list[str]:
    """List the secrets that this process knows: the key that it shows, and those in its variables."""
    named = [value for name, value in environ.items() if is_secret_name(name)]
    logins = [login for value in environ.values() for login in re.findall(r"://[^\s/@]*?:([^\s@]+)@", value)]
    return [each for each in (credential, *named, *logins) if each]
