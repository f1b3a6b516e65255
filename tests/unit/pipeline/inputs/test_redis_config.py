"""The configuration of Redis Streams: sent to executors, without a secret on show, and refused where it cannot work."""

from __future__ import annotations

import pickle

import pytest

from understudy_aligned.inputs.redis_streams import RedisConfig
from understudy_aligned.inputs.timestamps import TimestampRule, TimestampRules
from understudy_shared.base.errors import SettingsError


def test_the_configuration_travels_to_executors_and_shows_no_secret() -> None:
    rules = TimestampRules(TimestampRule("json", "t"))
    of = RedisConfig("rediss://me:secret@host:1/0?ssl_password=secret", ("weather",), timestamp=rules)
    assert pickle.loads(pickle.dumps(of)) == of
    assert hash(of) == hash(pickle.loads(pickle.dumps(of)))
    assert "secret" not in f"{of!r} {of.server}"
    assert "host" in of.server


@pytest.mark.parametrize(
    ("url", "partitions"),
    [("redis+cluster://host", None), ("http://host", None), ("redis+sentinel://host", None), ("redis://host", 0)],
    ids=["cluster", "no-redis", "no-service", "no-partitions"],
)
def test_a_configuration_that_cannot_work_is_refused_at_once(url: str, partitions: int | None) -> None:
    with pytest.raises(SettingsError):
        RedisConfig(url, ("weather",), partitions)
