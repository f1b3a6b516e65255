"""Opens inputs from their configurations: the one module that knows both, so that neither imports the other's user.

A new kind of input needs an entry in `OPENERS` and its options in `aligned/option_parsing.py`. Inputs are imported when
they are first opened: the clients of Kafka and Redis load slowly, and most processes need only one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from understudy_aligned.inputs.protocol import Input, InputConfig, RangeReader

if TYPE_CHECKING:
    from understudy_aligned.inputs.redis_streams import RedisConfig


class Opener(NamedTuple):
    """The functions that make an input, and a reader of ranges, from the configuration of one kind."""

    input: Callable[[Any], Input]
    reader: Callable[[Any], RangeReader]


def open_input(config: InputConfig) -> Input:
    """Open an input for the planner. Does no I/O."""
    return OPENERS[config.kind]().input(config)


def open_reader(config: InputConfig) -> RangeReader:
    """Open a reader of ranges for an executor. Does no I/O."""
    return OPENERS[config.kind]().reader(config)


def _kafka() -> Opener:
    from understudy_aligned.inputs.kafka_input import KafkaInput  # noqa: PLC0415  # see above
    from understudy_aligned.inputs.kafka_reader import KafkaRangeReader  # noqa: PLC0415

    return Opener(KafkaInput, KafkaRangeReader)


def _redis() -> Opener:
    from understudy_aligned.inputs.redis_ranges import RedisRangeReader  # noqa: PLC0415  # see above
    from understudy_aligned.inputs.redis_server import StreamServer  # noqa: PLC0415
    from understudy_aligned.inputs.redis_streams import RedisInput  # noqa: PLC0415

    def reader(config: RedisConfig) -> RangeReader:
        server = StreamServer(config.url, request_timeout_ms=config.request_timeout_ms)
        return RedisRangeReader(server, config.fields_of, fail_on_data_loss=config.fail_on_data_loss)

    return Opener(RedisInput, reader)


OPENERS: dict[str, Callable[[], Opener]] = {"kafka": _kafka, "redis": _redis}
"""By the configuration's `kind`."""
