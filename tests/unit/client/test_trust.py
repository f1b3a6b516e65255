"""Whom commands trust at an `https://` URL, and the certificate that they show where one is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.services.canned_server import Canned, CannedServer, canned_server
from tests.support.services.certificates import Signer

from understudy.commands.group import cli
from understudy.terminal.exits import ExitCode

STORES = Canned(b'{"application_id": "a", "generation": 1, "stores": [], "not_served": []}')


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(tmp_path_factory.mktemp("ours"))


@pytest.fixture
def asking(signer: Signer) -> Iterator[CannedServer]:
    """A server that answers nobody without a certificate of its authority."""
    with canned_server([STORES], signer.server_context(asks=True)) as running:
        yield running


def stores(server: CannedServer, *options: str, env: dict[str, str] | None = None) -> Result:
    result = CliRunner().invoke(cli, ["stores", "--json", "--url", server.url, *options], env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def test_a_certificate_is_shown_that_options_or_variables_name(asking: CannedServer, signer: Signer) -> None:
    own = signer.issue("me")
    given = {"--ca-file": signer.file, "--cert-file": own.certificate, "--key-file": own.key}
    assert stores(asking, *(str(each) for pair in given.items() for each in pair)).exit_code == ExitCode.OK
    names = {
        "--ca-file": "UNDERSTUDY_CA_FILE",
        "--cert-file": "UNDERSTUDY_CERT_FILE",
        "--key-file": "UNDERSTUDY_KEY_FILE",
    }
    variables = {names[option]: str(path) for option, path in given.items()}
    assert stores(asking, env=variables).exit_code == ExitCode.OK
    both = own.certificate.with_name("both.pem")
    both.write_bytes(own.certificate.read_bytes() + own.key.read_bytes())
    assert stores(asking, "--ca-file", str(signer.file), "--cert-file", str(both)).exit_code == ExitCode.OK
    assert len(asking.requests) == 3


@pytest.mark.parametrize("wrong", ["absent", "no certificate", "another key"])
def test_files_that_cannot_be_used_are_wrong_usage_and_named(
    asking: CannedServer, signer: Signer, tmp_path: Path, wrong: str
) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate\n")
    other, own = signer.issue("other"), signer.issue("me")
    options = {
        "absent": ["--ca-file", str(tmp_path / "nowhere.pem")],
        "no certificate": ["--ca-file", str(garbage)],
        "another key": ["--cert-file", str(own.certificate), "--key-file", str(other.key)],
    }[wrong]
    result = stores(asking, *options)
    assert result.exit_code == ExitCode.USAGE
    assert options[-1] in result.stderr
    assert asking.requests == []
