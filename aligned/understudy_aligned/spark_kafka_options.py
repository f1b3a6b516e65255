"""Options of Spark's own Kafka source, for users who migrate from `format("kafka")` (pure).

Each option either works as in Spark, under Spark's name, or is refused with the option to write instead. Names are in
lower case: Spark's options ignore case.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from understudy_aligned.inputs.kafka_topics import EARLIEST, StartPositions
from understudy_shared.base.errors import SettingsError

SAME_AS: Mapping[str, str] = {
    "kafka.bootstrap.servers": "kafka",
    "subscribe": "topics",
    "subscribepattern": "topics_pattern",
    "startingoffsets": "starting",
    "failondataloss": "fail_on_data_loss",
    "includeheaders": "include_headers",
    "maxoffsetspertrigger": "max_poll_records",
    "minoffsetspertrigger": "min_poll_records",
    "maxtriggerdelay": "max_trigger_delay_ms",
    "minpartitions": "reader_tasks",
    "kafkaconsumer.polltimeoutms": "poll_timeout_ms",
    "kafka.fetch.max.wait.ms": "kafka.fetch.wait.max.ms",
    "kafka.receive.buffer.bytes": "kafka.socket.receive.buffer.bytes",
    "kafka.send.buffer.bytes": "kafka.socket.send.buffer.bytes",
}
"""Our option for each of Spark's that does the same."""

_SUBSCRIPTIONS = frozenset({"subscribe", "subscribepattern", "assign"})
"""Options that select what is read. A query that sets one begins at the ends of the logs, as with Spark's source."""

POSITIONS = frozenset(
    {"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp", "startingoffsetsbytimestampstrategy"}
)
"""Options that say where a new query begins (`starting`)."""

_NO_END = (
    "A stream has no end. Leave it out; .trigger(availableNow=True) stops at the present ends, and "
    "spark.read.format('kafka') reads a batch up to others"
)
_NO_GROUP = "Leave it out: this source joins no consumer group and commits nothing to Kafka"
_TIMEOUT = "Use request_timeout_ms, the longest wait for one answer of a broker"
_BYTES = "Leave it out: key and value are always bytes. Cast the columns"
_OAUTH = "Use librdkafka's own properties, such as kafka.sasl.oauthbearer.method=oidc and kafka.sasl.oauthbearer.*"


def _all(text: str, names: str) -> Mapping[str, str]:
    """Return the same replacement for each of these names."""
    return dict.fromkeys(names.split(), text)


INSTEAD: Mapping[str, str] = {
    "endingoffsets": _NO_END,
    "endingtimestamp": _NO_END,
    "endingoffsetsbytimestamp": _NO_END,
    "maxrecordsperpartition": "Use max_poll_records, which bounds a batch, and reader_tasks, which spreads it",
    "groupidprefix": _NO_GROUP,
    "fetchoffset.numretries": _TIMEOUT,
    "fetchoffset.retryintervalms": _TIMEOUT,
    "kafka.group.id": _NO_GROUP,
    "kafka.auto.offset.reset": "Use startingOffsets",
    "kafka.enable.auto.commit": _NO_GROUP,
    "kafka.key.deserializer": _BYTES,
    "kafka.value.deserializer": _BYTES,
    "kafka.interceptor.classes": "Leave it out: there is no Java client",
    "kafka.max.poll.records": "Use max_poll_records",
    "kafka.request.timeout.ms": _TIMEOUT,
    "kafka.default.api.timeout.ms": _TIMEOUT,
    "kafka.ssl.truststore.location": "Use kafka.ssl.ca.location, a PEM file: "
    "keytool -list -rfc -keystore STORE > ca.pem",
    "kafka.ssl.truststore.password": "Leave it out: the PEM file of kafka.ssl.ca.location has no password",
    "kafka.ssl.truststore.type": "Leave it out: kafka.ssl.ca.location is a PEM file",
    "kafka.ssl.truststore.certificates": "Use kafka.ssl.ca.pem",
    "kafka.ssl.keystore.type": "Leave it out: kafka.ssl.keystore.location is a PKCS#12 file. From another type: "
    "keytool -importkeystore -srckeystore STORE -destkeystore store.p12 -deststoretype PKCS12",
    "kafka.ssl.keystore.certificate.chain": "Use kafka.ssl.certificate.pem",
    "kafka.ssl.keystore.key": "Use kafka.ssl.key.pem",
    "kafka.ssl.protocol": "Leave it out: OpenSSL chooses the protocol",
    "kafka.ssl.enabled.protocols": "Leave it out: OpenSSL chooses the protocol",
    "kafka.sasl.jaas.config": "Use kafka.sasl.username and kafka.sasl.password, with the name and the password in it",
    "kafka.exclude.internal.topics": "Leave it out: a pattern matches none of Kafka's internal topics",
    "kafka.config.providers": "Leave it out, and give the values themselves",
    "kafka.socket.connection.setup.timeout.max.ms": "Use kafka.socket.connection.setup.timeout.ms",
    "kafka.sasl.oauthbearer.assertion.template.file": "Use kafka.sasl.oauthbearer.assertion.jwt.template.file",
    **_all(
        "Leave it out: this source has metrics of its own, in the query's progress and at metrics_port",
        "kafka.auto.include.jmx.reporter kafka.metric.reporters kafka.metrics.num.samples "
        "kafka.metrics.recording.level kafka.metrics.sample.window.ms",
    ),
    **_all(
        "Leave it out: TLS is OpenSSL's, without Java's providers",
        "kafka.security.providers kafka.ssl.provider kafka.ssl.engine.factory.class kafka.ssl.keymanager.algorithm "
        "kafka.ssl.trustmanager.algorithm kafka.ssl.secure.random.implementation",
    ),
    **_all(
        "Use kafka.sasl.kerberos.min.time.before.relogin: tickets are renewed by kafka.sasl.kerberos.kinit.cmd",
        "kafka.sasl.kerberos.ticket.renew.jitter kafka.sasl.kerberos.ticket.renew.window.factor",
    ),
    **_all(
        "Leave it out: the client renews tokens by itself",
        "kafka.sasl.login.connect.timeout.ms kafka.sasl.login.read.timeout.ms kafka.sasl.login.retry.backoff.ms "
        "kafka.sasl.login.retry.backoff.max.ms kafka.sasl.login.refresh.buffer.seconds "
        "kafka.sasl.login.refresh.min.period.seconds kafka.sasl.login.refresh.window.factor "
        "kafka.sasl.login.refresh.window.jitter",
    ),
    **_all(
        "Leave it out: brokers validate tokens, not this source",
        "kafka.sasl.oauthbearer.clock.skew.seconds kafka.sasl.oauthbearer.expected.audience "
        "kafka.sasl.oauthbearer.expected.issuer kafka.sasl.oauthbearer.jwks.endpoint.url "
        "kafka.sasl.oauthbearer.jwks.endpoint.refresh.ms kafka.sasl.oauthbearer.jwks.endpoint.retry.backoff.ms "
        "kafka.sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms kafka.sasl.oauthbearer.jwt.validator.class "
        "kafka.sasl.oauthbearer.scope.claim.name",
    ),
    **_all(
        _OAUTH,
        "kafka.sasl.login.class kafka.sasl.login.callback.handler.class kafka.sasl.client.callback.handler.class "
        "kafka.sasl.oauthbearer.header.urlencode kafka.sasl.oauthbearer.jwt.retriever.class",
    ),
}
"""The replacement of each refused option of Spark's and of its Java client's."""


def with_our_names(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options with names in lower case, and with our names for Spark's options that do the same here.

    Raises SettingsError for a refused option, and for one that is set under both names. `startingOffsets` stays if it
    is JSON, for `start_positions`.
    """
    names = {name.lower() for name in given}
    renamed: dict[str, str] = {}
    for spelled, value in given.items():
        name = spelled.lower()
        if name in INSTEAD:
            raise SettingsError(
                f"'{spelled}' is an option of format('kafka') that this source does not have",
                where=f"option {spelled}",
                fix=INSTEAD[name],
            )
        ours = SAME_AS.get(name)
        if ours is None or (name == "startingoffsets" and value.strip().startswith("{")):
            renamed[name] = value
        elif ours in names:
            raise SettingsError(
                f"{spelled} and {ours} are two names of one option, and both are set",
                where=f"option {ours}",
                fix=f"Leave {spelled} out",
            )
        else:
            renamed[ours] = value
    if names & _SUBSCRIPTIONS and "starting" not in renamed:
        renamed["starting"] = "latest"
    if renamed.get("kafka.ssl.endpoint.identification.algorithm") == "":
        renamed["kafka.ssl.endpoint.identification.algorithm"] = "none"
    return renamed


def place_as_given(where: str, given: Mapping[str, str]) -> str:
    """Return the place of an error about an option, with the name that the user wrote."""
    for spelled in given:
        ours = SAME_AS.get(spelled.lower())
        if where == f"option {ours}":
            return f"option {spelled}, which is {ours} here"
    return where


def start_positions(given: Mapping[str, str]) -> StartPositions | None:
    """Return the positions that the options (names in lower case) give; None without such options. Raises
    SettingsError.

    As in Spark, one time for all partitions wins over times by partition, and those win over offsets.
    """
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise SettingsError(
            f"'{strategy}' is neither error nor latest", where="option startingOffsetsByTimestampStrategy"
        )
    is_latest = strategy == "latest"
    if (text := given.get("startingtimestamp")) is not None:
        option = "startingTimestamp"
        return StartPositions(option, time_ms=_whole(text.strip(), option), latest_if_none=is_latest)
    if (text := given.get("startingoffsetsbytimestamp")) is not None:
        option = "startingOffsetsByTimestamp"
        return StartPositions(option, times_ms=_by_partition(text, option, least=0), latest_if_none=is_latest)
    text = given.get("startingoffsets", "")
    if not text.strip().startswith("{"):
        return None
    return StartPositions("startingOffsets", offsets=_by_partition(text, "startingOffsets", least=EARLIEST))


def _whole(text: str, option: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise SettingsError(f"'{text}' is not a time in milliseconds since 1970", where=f"option {option}")
    return int(text)


def _by_partition(text: str, option: str, *, least: int) -> tuple[tuple[str, int, int], ...]:
    try:
        found = orjson.loads(text)
        values = [(topic, int(partition), value) for topic, each in found.items() for partition, value in each.items()]
    except (ValueError, AttributeError):
        values = [("", -1, least)]
    for _, partition, value in values:
        if partition < 0 or type(value) is not int or value < least:
            raise SettingsError(
                f"'{text}' does not give each partition of each topic a whole number of at least {least}",
                where=f"option {option}",
                fix='Write JSON like {"flights":{"0":23,"1":-2}}',
            )
    return tuple(values)
