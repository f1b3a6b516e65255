"""A real broker with TLS and SASL: the options that the page for migration names let a reader in, and no others do."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.support.kafka.clients import produce
from tests.support.kafka.secure_broker import PASSWORD, USER, SecureBroker, make_certificates, secure_broker
from tests.support.spark.planned_query import rows_between
from tests.support.spark.queries import wait_until

from understudy_aligned.inputs.protocol import InputError
from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.open_inputs import check_inputs
from understudy_aligned.option_parsing import parse_options
from understudy_aligned.stream import AlignedStream

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with secure_broker(tmp_path_factory.mktemp("kafka-secure")) as found:
        yield found


@pytest.fixture(scope="module")
def script(secured: SecureBroker) -> Mapping[str, str]:
    """A script that is let in, and a topic with three records."""
    topic = secured.make_topic()
    produce(secured.servers, TopicPartition(topic, 0), [b"a", b"b", b"c"])
    return {
        "kafka.bootstrap.servers": secured.secure_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "request_timeout_ms": "3000",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": USER,
        "kafka.sasl.password": PASSWORD,
        "kafka.ssl.ca.location": str(secured.certificates.authority),
    }


def test_planner_and_executors_read_through_tls_and_sasl(script: Mapping[str, str]) -> None:
    options = parse_options({**script, "spool": "off"})
    assert check_inputs(options) == {script["subscribe"]: 1}
    stream = AlignedStream(options)
    try:
        start = end = stream.initial_offset()

        def has_planned() -> bool:
            nonlocal end
            end = stream.latest_offset(start)
            return end != start

        wait_until(has_planned, what="a batch", limit_s=60)
        assert [(row["offset"], row["value"]) for row in rows_between(stream, start, end)] == [
            (0, b"a"),
            (1, b"b"),
            (2, b"c"),
        ]
        assert end["topic_ids"], "the admin client is let in, too"
    finally:
        stream.stop()


def test_a_truststore_of_java_becomes_the_file_that_is_asked_for_as_the_error_says(
    script: Mapping[str, str], secured: SecureBroker, tmp_path: Path
) -> None:
    if shutil.which("keytool") is None:
        pytest.skip("no keytool")
    store, pem = tmp_path / "truststore.jks", tmp_path / "ca.pem"
    password = ["-storepass", "changeit"]
    imported = ["-importcert", "-noprompt", "-alias", "ca", "-file", str(secured.certificates.authority)]
    subprocess.run(["keytool", *imported, "-keystore", str(store), *password], capture_output=True, check=True)
    as_text = ["keytool", "-list", "-rfc", "-keystore", str(store), *password]
    pem.write_bytes(subprocess.run(as_text, capture_output=True, check=True).stdout)
    options = parse_options({**script, "kafka.ssl.ca.location": str(pem)})
    assert check_inputs(options) == {script["subscribe"]: 1}


@pytest.mark.parametrize("wrong", ["password", "authority", "protocol"])
def test_who_is_not_let_in_is_told_why_and_no_secret_is_in_it(
    script: Mapping[str, str], wrong: str, tmp_path: Path
) -> None:
    changed = {
        "password": {"kafka.sasl.password": "not the secret"},
        "authority": {"kafka.ssl.ca.location": str(make_certificates(tmp_path, name="other").authority)},
        "protocol": {"kafka.security.protocol": "SASL_PLAINTEXT"},
    }[wrong]
    reasons = {
        "password": "Authentication failed",
        "authority": "certificate verify failed",
        "protocol": "did not list its topics",
    }
    with pytest.raises(InputError, match=reasons[wrong]) as refused:
        check_inputs(parse_options({**script, **changed}))
    assert "secret" not in str(refused.value)
