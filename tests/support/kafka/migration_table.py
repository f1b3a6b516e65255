"""Every option of Spark's Kafka source as `format("understudy")` takes it: the table of the page for those who migrate.

`python -m tests.support.kafka.migration_table` writes it into the page. What is in it is what the options' parser does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tests.support.repository import ROOT

from understudy_aligned.option_parsing import parse_options
from understudy_aligned.spark_kafka_options import INSTEAD, SAME_AS
from understudy_shared.base.errors import SettingsError

PAGE = ROOT / "docs" / "migrating-from-kafka.md"
BEGIN, END = "<!-- options: written by tests/support/kafka/migration_table.py -->", "<!-- end of the options -->"

SCRIPT = {"kafka.bootstrap.servers": "broker:9092", "subscribe": "weather,flights"}
"""What every script has."""

SOURCE_OPTIONS: Mapping[str, str] = {
    "kafka.bootstrap.servers": "broker:9092",
    "subscribe": "weather,flights",
    "subscribePattern": "fl.*",
    "assign": '{"flights":[0,1]}',
    "startingOffsets": "earliest",
    "startingOffsets (JSON)": '{"weather":{"0":-1},"flights":{"0":23}}',
    "startingTimestamp": "1700000000000",
    "startingOffsetsByTimestamp": '{"weather":{"0":1000},"flights":{"0":1000}}',
    "startingOffsetsByTimestampStrategy": "latest",
    "endingOffsets": "latest",
    "endingTimestamp": "1700000000000",
    "endingOffsetsByTimestamp": '{"flights":{"0":1000}}',
    "failOnDataLoss": "false",
    "includeHeaders": "true",
    "maxOffsetsPerTrigger": "10000",
    "minOffsetsPerTrigger": "100",
    "maxTriggerDelay": "15m",
    "minPartitions": "8",
    "maxRecordsPerPartition": "1000",
    "groupIdPrefix": "mine",
    "kafka.group.id": "mine",
    "kafkaConsumer.pollTimeoutMs": "120000",
    "fetchOffset.numRetries": "3",
    "fetchOffset.retryIntervalMs": "10",
}
"""Every option in Spark's guide to its Kafka source, with a value."""

CLIENT_OPTIONS: Mapping[str, str] = {
    "kafka.client.id": "mine",
    "kafka.client.rack": "a",
    "kafka.isolation.level": "read_uncommitted",
    "kafka.fetch.min.bytes": "1",
    "kafka.fetch.max.bytes": "52428800",
    "kafka.max.partition.fetch.bytes": "1048576",
    "kafka.fetch.max.wait.ms": "500",
    "kafka.receive.buffer.bytes": "65536",
    "kafka.send.buffer.bytes": "65536",
    "kafka.session.timeout.ms": "30000",
    "kafka.reconnect.backoff.ms": "50",
    "kafka.metadata.max.age.ms": "300000",
    "kafka.max.poll.records": "500",
    "kafka.request.timeout.ms": "30000",
    "kafka.default.api.timeout.ms": "60000",
    "kafka.auto.offset.reset": "earliest",
    "kafka.enable.auto.commit": "false",
    "kafka.key.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
    "kafka.value.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
    "kafka.interceptor.classes": "Mine",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.ssl.truststore.location": "/etc/truststore.jks",
    "kafka.ssl.truststore.password": "secret",
    "kafka.ssl.truststore.type": "JKS",
    "kafka.ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----",
    "kafka.ssl.keystore.type": "JKS",
    "kafka.ssl.keystore.certificate.chain": "-----BEGIN CERTIFICATE-----",
    "kafka.ssl.keystore.key": "-----BEGIN PRIVATE KEY-----",
    "kafka.ssl.endpoint.identification.algorithm": "",
    "kafka.ssl.protocol": "TLSv1.3",
    "kafka.ssl.enabled.protocols": "TLSv1.3",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.kerberos.service.name": "kafka",
    "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required;",
    **{name: "1" for name in INSTEAD if name.startswith("kafka.")},
}
"""Properties of Kafka's Java client that scripts set, and all that librdkafka does not have."""

NOTES: Mapping[str, str] = {
    "subscribe": "all partitions; the order of the topics breaks ties between equal times. A query that sets it begins "
    "at the ends of the logs, as in Spark; one that sets `topics` begins at their beginnings",
    "subscribePattern": "with the syntax of Python's `re`. [Later topics](aligned-source.md#what-is-read) with another "
    "number of partitions wait",
    "assign": "a query that sets it begins at the ends of the logs, as in Spark. The order of the topics breaks ties",
    "startingOffsets (JSON)": "all partitions must be given, as in Spark",
    "startingTimestamp": "wins over the others, as in Spark",
    "minPartitions": "most Spark tasks of a batch. A range of a partition is not split, so it may be fewer",
    "maxOffsetsPerTrigger": "counts records, and shares them among tasks",
    "minOffsetsPerTrigger": "counts records that are next in order. `availableNow` ignores it, where Spark leaves the "
    "rest to the next run",
    "maxTriggerDelay": "counted from the last batch, where Spark begins to count anew also when the delay has passed "
    "and there is nothing",
    "failOnDataLoss": "also for a topic that was deleted and created again",
    "kafka.isolation.level": "`read_committed` by default. Fixed for the life of a checkpoint",
    "kafka.sasl.kerberos.service.name": "the client's wheels have no Kerberos. Install librdkafka with its "
    "GSSAPI support (librdkafka-dev, libsasl2-modules-gssapi-mit), then `pip install --no-binary confluent-kafka "
    "confluent-kafka` on the driver and all executors, and set `kafka.sasl.kerberos.keytab` and "
    "`kafka.sasl.kerberos.principal`",
    "kafka.ssl.endpoint.identification.algorithm": "an empty value is `none`",
}
"""What to know of options that work."""


class Outcome(NamedTuple):
    """Whether an option works, and our name for it and what to know, or the error's words of what to write instead."""

    works: bool
    text: str


def outcome(shown: str, value: str) -> Outcome:
    """Parse a script that sets the option. An error that names another option is none of this one's."""
    name = shown.partition(" ")[0]
    try:
        parse_options({**_rest_of_script(name), name: value})
    except SettingsError as refused:
        if refused.where != f"option {name}":
            raise
        return Outcome(works=False, text=refused.fix or "")
    ours = SAME_AS.get(name.lower())
    same = f"as `{ours}`" if ours is not None and "JSON" not in shown else ""
    return Outcome(works=True, text="; ".join(filter(None, [same, NOTES.get(shown, "")])))


def _rest_of_script(name: str) -> Mapping[str, str]:
    rest = dict(SCRIPT)
    if name in ("subscribePattern", "assign"):
        del rest["subscribe"]
    if name == "startingOffsetsByTimestampStrategy":
        rest["startingTimestamp"] = "1000"
    if name == "kafka.security.protocol":
        rest |= {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "me", "kafka.sasl.password": "secret"}
    return rest


def table(options: Mapping[str, str]) -> str:
    """A row for each outcome that works, and behind the rows the options that are refused."""
    names: dict[str, list[str]] = {}
    refused: list[str] = []
    for shown, value in options.items():
        works, text = outcome(shown, value)
        (names.setdefault(text or "the same", []) if works else refused).append(f"`{shown}`")
    lines = ["| works | what to know |", "|---|---|"]
    lines += [f"| {', '.join(shown)} | {text.replace('|', chr(92) + '|')} |" for text, shown in names.items()]
    return "\n".join([*lines, "", f"Refused, with an error that says what to write instead: {', '.join(refused)}."])


def written() -> str:
    """What belongs between the page's marks."""
    heads = ("### Of the source", "### Of the client (`kafka.*`)")
    parts = [f"{head}\n\n{table(each)}" for head, each in zip(heads, (SOURCE_OPTIONS, CLIENT_OPTIONS), strict=True)]
    return "\n\n".join(parts)


def main() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, behind = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{written()}\n\n{END}{behind}")


if __name__ == "__main__":
    main()
