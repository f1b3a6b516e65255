"""Where an S3 checkpoint is and who reads it: the location, and what the usual environment and files say (pure).

The library reads the environment itself and knows roles: web identity (EKS), containers (ECS, EKS Pod Identity),
instances (EC2). Credentials files it does not know, so their profiles are read here. Nothing here is ever printed but
the name of the place that credentials came from.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from understudy_shared.base.errors import NotACheckpointError, SettingsError
from understudy_shared.base.masking import masked_location

S3_SCHEMES = frozenset({"s3", "s3a", "s3n"})
"""S3 as other tools write it, and as Hadoop does."""

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,253}[a-z0-9]", re.ASCII | re.IGNORECASE)
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_NOT_READ = ("credential_process", "role_arn", "sso_session", "sso_start_url")
"""What a profile may have in place of keys, and this release does not follow."""

ReadFile = Callable[[Path], str | None]
"""The text of a file; None where there is none."""


@dataclass(frozen=True, slots=True)
class S3Location:
    """A bucket and a prefix in it, "" for all of the bucket. `url` is fit for messages."""

    url: str
    bucket: str
    prefix: str


@dataclass(frozen=True, slots=True)
class S3Access:
    """What the library is given beyond the environment."""

    config: Mapping[str, str] = field(repr=False)
    allow_http: bool
    looked_in: str
    """The places where credentials are looked for."""


def parse_location(url: str) -> S3Location:
    """The location that a URL names; the path is taken as it stands, as Hadoop does."""
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme not in S3_SCHEMES or not _BUCKET.fullmatch(bucket):
        raise NotACheckpointError(
            "This is no location in S3",
            where=masked_location(url),
            fix="Write s3://bucket/path. Credentials come from the environment, a credentials file or a role, never "
            "from the URL (docs/object-stores.md)",
        )
    return S3Location(masked_location(url.rstrip("/")), bucket, prefix.strip("/"))


def s3_access(environ: Mapping[str, str], read_file: ReadFile) -> S3Access:
    """Credentials, region and endpoint, in the order of the AWS tools. Raises SettingsError."""
    name = environ.get("AWS_PROFILE", "default")
    config_file = _path(environ, "AWS_CONFIG_FILE", "config")
    in_config = _section(config_file, read_file, "default" if name == "default" else f"profile {name}")
    settings: dict[str, str] = {}
    if "region" in in_config and not environ.keys() & {"AWS_REGION", "AWS_DEFAULT_REGION"}:
        settings["region"] = in_config["region"]
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or environ.get("AWS_ENDPOINT")
    if endpoint is None and (endpoint := in_config.get("endpoint_url")) is not None:
        settings["endpoint"] = endpoint
    keys = _credentials(environ, read_file, name, in_config, config_file)
    looked_in = (
        "the environment (AWS_ACCESS_KEY_ID, AWS_WEB_IDENTITY_TOKEN_FILE), "
        f"profile {name} of {_path(environ, 'AWS_SHARED_CREDENTIALS_FILE', 'credentials')} and of {config_file}, "
        "the role of this container or machine"
    )
    return S3Access({**settings, **keys}, (endpoint or "").startswith("http://"), looked_in)


def _credentials(
    environ: Mapping[str, str], read_file: ReadFile, name: str, in_config: Mapping[str, str], config_file: Path
) -> dict[str, str]:
    """The keys of the profile; none where the library finds something in the environment, or has to find a role."""
    if environ.get("AWS_SKIP_SIGNATURE", "").lower() in {"true", "1"}:
        return {}
    if environ.keys() & _KEYS:
        for variable in _KEYS:
            if not environ.get(variable):
                raise SettingsError(f"{variable} is not set", where="environment", fix="Set both keys, or neither")
        return {}
    if environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return {}
    credentials_file = _path(environ, "AWS_SHARED_CREDENTIALS_FILE", "credentials")
    for path, section in ((credentials_file, _section(credentials_file, read_file, name)), (config_file, in_config)):
        _refuse_unread(section, path, name)
        if "aws_access_key_id" in section:
            return _keys(section, path, name)
    if "AWS_PROFILE" in environ:
        raise SettingsError(
            f"There is no profile {name} with keys", where=str(credentials_file), fix="Name another by AWS_PROFILE"
        )
    return {}


def _refuse_unread(section: Mapping[str, str], path: Path, name: str) -> None:
    for unread in () if "aws_access_key_id" in section else _NOT_READ:
        if unread in section:
            raise SettingsError(
                f"Profile {name} has {unread}, which is not followed",
                where=str(path),
                fix="Give keys: `aws configure export-credentials --format env` prints them for the environment; or "
                "run the node under a role",
            )


def _keys(section: Mapping[str, str], path: Path, name: str) -> dict[str, str]:
    secret = section.get("aws_secret_access_key")
    if not section["aws_access_key_id"] or not secret:
        raise SettingsError(f"Profile {name} lacks a key", where=str(path), fix="Set both keys there")
    keys = {"access_key_id": section["aws_access_key_id"], "secret_access_key": secret}
    token = section.get("aws_session_token")
    return keys | ({"session_token": token} if token else {})


def _path(environ: Mapping[str, str], variable: str, name: str) -> Path:
    return Path(environ.get(variable) or f"{environ.get('HOME', '~')}/.aws/{name}").expanduser()


def _section(path: Path, read_file: ReadFile, name: str) -> Mapping[str, str]:
    text = read_file(path)
    if text is None:
        return {}
    parser = configparser.RawConfigParser(default_section="")
    try:
        parser.read_string(text)
    except configparser.Error as error:
        # The error's text repeats lines, which may be secrets.
        raise SettingsError(f"The file does not parse ({type(error).__name__})", where=str(path)) from None
    return dict(parser[name]) if parser.has_section(name) else {}
