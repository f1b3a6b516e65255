"""The parts of `object_store.StoreFolder` that are specific to S3, and to stores that speak its protocol.

The library reads the environment itself and knows roles: web identity (EKS), containers (ECS, EKS Pod Identity),
instances (EC2). It does not read credentials files, so their profiles are read here.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from obstore.store import S3Store

from understudy_node.checkpoint.object_store import (
    StoreAccess,
    StoreFolder,
    StoreTerms,
    location_of,
    refuse_empty,
)
from understudy_node.checkpoint.store_files import ReadFile, text_of
from understudy_shared.base.errors import SettingsError

_LOCATION = re.compile(
    r"s3[an]?://([a-z0-9][a-z0-9._-]{1,253}[a-z0-9])(?:/(.*))?", re.ASCII | re.IGNORECASE | re.DOTALL
)
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_IDENTITIES = ("AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN")
_NOT_READ = ("credential_process", "role_arn", "sso_session", "sso_start_url")
"""Settings that a profile may have instead of keys, and that this release does not support."""


class S3(StoreFolder):
    """A checkpoint in a bucket: the objects below `prefix`, or all with "", as the URL says."""

    library = S3Store
    terms = StoreTerms(
        tag="e_tag",
        condition="if_match",
        bucket="bucket",
        expired=frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "RequestExpired"}),
        identity=re.compile("/latest/(?:api/token|meta-data/iam/security-credentials)"),
        provider=re.compile("http://[^/]*/v[12]/credentials"),  # the agents of ECS and EKS
        no_credentials="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, give a credentials file, run under a role, or "
        "set AWS_SKIP_SIGNATURE=true for a public bucket (docs/object-stores.md)",
        policy="Allow s3:GetObject on the prefix and s3:ListBucket on the bucket (docs/object-stores.md); without "
        "s3:ListBucket a missing file looks like a refused one",
        settings="Check AWS_REGION, the endpoint, and what else is set by AWS_* (docs/object-stores.md)",
        not_https="Set AWS_ENDPOINT_URL, or AWS_ALLOW_HTTP=true",
    )

    def __init__(self, url: str, access: Callable[[], StoreAccess] | None = None) -> None:
        """Parse the URL. By default the credentials are this process's."""
        fix = "Write s3://bucket/path. Credentials come from the environment, a credentials file or a role"
        location = location_of(url, _LOCATION, store="S3", fix=fix)
        super().__init__(url, location[1], location[2], access or (lambda: s3_access(os.environ, text_of)))


def s3_access(environ: Mapping[str, str], read_file: ReadFile) -> StoreAccess:
    """Return credentials, region and endpoint, in the order of the AWS tools. Raises SettingsError."""
    refuse_empty(environ, (*_IDENTITIES, *_REGIONS, *_ENDPOINTS))
    name = environ.get("AWS_PROFILE", "default")
    config_file = _path(environ, "AWS_CONFIG_FILE", "config")
    keys_file = _path(environ, "AWS_SHARED_CREDENTIALS_FILE", "credentials")
    in_config = _section(config_file, read_file, "default" if name == "default" else f"profile {name}")
    settings: dict[str, str] = {}
    if "region" in in_config and not environ.keys() & set(_REGIONS):
        settings["region"] = in_config["region"]
    endpoint = next((environ[variable] for variable in _ENDPOINTS if variable in environ), None)
    if endpoint is None and (endpoint := in_config.get("endpoint_url")) is not None:
        settings["endpoint"] = endpoint
    if not _is_named(environ):
        sections = {keys_file: _section(keys_file, read_file, name), config_file: in_config}
        settings |= _keys(sections, name, is_asked_for="AWS_PROFILE" in environ)
    looked_in = (
        "the environment (AWS_ACCESS_KEY_ID, AWS_WEB_IDENTITY_TOKEN_FILE), "
        f"profile {name} of {keys_file} and of {config_file}, the role of this container or machine"
    )
    regions = (environ[variable] for variable in _REGIONS if variable in environ)
    region = next(regions, settings.get("region", "us-east-1"))
    asked_at = endpoint or f"https://s3.{region}.amazonaws.com"
    return StoreAccess(settings, asked_at.startswith("http://"), looked_in, endpoint=asked_at)


def _is_named(environ: Mapping[str, str]) -> bool:
    """Whether the environment has credentials, or needs no credentials, so that no profile is read."""
    if environ.get("AWS_SKIP_SIGNATURE", "").lower() in {"true", "1"}:
        return True
    missing = [variable for variable in _KEYS if not environ.get(variable)]
    if missing and environ.keys() & _KEYS:
        raise SettingsError(f"{missing[0]} is not set", where="environment", fix="Set both keys, or neither")
    return not missing or bool(environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"))


def _keys(sections: Mapping[Path, Mapping[str, str]], name: str, *, is_asked_for: bool) -> dict[str, str]:
    """Return the keys of a profile, from the first file that has them.

    Return no keys if no file has them and AWS_PROFILE does not ask for the profile.
    """
    for path, section in sections.items():
        if "aws_access_key_id" in section:
            secret = section.get("aws_secret_access_key")
            if not section["aws_access_key_id"] or not secret:
                raise SettingsError(f"Profile {name} lacks a key", where=str(path), fix="Set both keys there")
            keys = {"access_key_id": section["aws_access_key_id"], "secret_access_key": secret}
            token = section.get("aws_session_token")
            return keys | ({"session_token": token} if token else {})
        for unread in _NOT_READ:
            if unread in section:
                raise SettingsError(
                    f"Profile {name} has {unread}, which is not supported",
                    where=str(path),
                    fix="Give keys: `aws configure export-credentials --format env` prints them for the environment; "
                    "or run the node under a role",
                )
    if is_asked_for:
        raise SettingsError(
            f"There is no profile {name} with keys", where=str(next(iter(sections))), fix="Name another by AWS_PROFILE"
        )
    return {}


def _path(environ: Mapping[str, str], variable: str, name: str) -> Path:
    return Path(environ.get(variable) or f"{environ.get('HOME', '~')}/.aws/{name}").expanduser()


def _section(path: Path, read_file: ReadFile, name: str) -> Mapping[str, str]:
    parser = configparser.RawConfigParser(default_section="")
    try:
        parser.read_string(read_file(path) or "")
    except configparser.Error as error:
        # The error's text repeats lines, which may be secrets.
        raise SettingsError(f"The file does not parse ({type(error).__name__})", where=str(path)) from None
    return dict(parser[name]) if parser.has_section(name) else {}
