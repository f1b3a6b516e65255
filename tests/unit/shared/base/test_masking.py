"""Secrets in settings: whatever mistake somebody makes in a URL, no error, log line or repr has its password."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from understudy.services.settings import settings_error
from understudy.terminal.exits import say_error
from understudy_aligned.inputs.kafka_client import KafkaConfig
from understudy_aligned.inputs.redis_streams import StreamServer
from understudy_node.checkpoint.opening import open_checkpoint_files
from understudy_node.settings import NodeSettings
from understudy_router.settings import RouterSettings
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.masking import masked, masked_location, masked_text, words_of
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.bus.redis_connection import bus_error
from understudy_shared.bus.redis_sync import SyncPublisher
from understudy_shared.telemetry.logs import JsonFormatter, TextLines

SECRET = "hunTer2xyz"
HALVES = ("hunTer2", "xyz9Q")
"""What stands on both sides of a character that was not percent-encoded."""

MISTAKES = [
    *(f"redis://user:{{a}}{sign}{{b}}@host" for sign in "/@:% \\[]"),
    *(f"redis://{{a}}{sign}{{b}}@host" for sign in ("", "/", "#")),
    *(f"redis://host?{name}={{a}}{{b}}" for name in ("Password", "pasword", "passw%6frd", "db")),
    "redis://user:{a}?{b}@host:6379/0",
    "redis://user:{a}#{b}@host:6379/0",
    "redis://:{a}/{b}@host",
    "redis://user:{a}{b}",
    "redis://user:{a}{b}/0",
    "redis://user:{a}{b}%40host:6379",
    "redis://user:{a}{b}@host:port",
    "redis://user:{a}{b}@ho st",
    "redis://user:{a}{b}@[broken",
    "redis://user:{a}{b}@host:99999999",
    "redis://host?PASSWORD={a}{b}&db=1",
    "redis://host?{a}{b}",
    "redis://host?password={a}@{b}",
    "redis://host?password={a}#{b}",
    "redis://host#password={a}{b}",
    "redis://host/0;password={a}{b}",
    "redis://host/0 password={a}{b}",
    "redis:/user:{a}{b}@host",
    "redis//user:{a}{b}@host",
    "redis:user:{a}{b}@host",
    "redis:\\\\user:{a}{b}@host",
    "redis%3A//user:{a}{b}@host",
    "user:{a}{b}@host:6379",
    "{a}{b}",
    " redis://user:{a}/{b}@host",
    "re dis://user:{a}{b}@host",
    "http://user:{a}{b}@host",
    "REDIS://user:{a}/{b}@host",
    "unix://user:{a}/{b}@/run/redis.sock",
    "redis+sentinel://user:{a}/{b}@host:1,other:2/us/0",
    "redis+sentinel://user:{a}{b}@host:1,other:port/us",
    "redis+sentinel://user:{a}{b}@/us",
    "redis+sentinel://host:1/us/0?sentinel_pasword={a}{b}",
    "redis+sentinel://host:1/us/0?sentinel_password={a}#{b}",
    "rediss+sentinel://:{a}?{b}@host:1/us",
    "redis+cluster://user:{a}/{b}@host",
]
"""Ways to write the URL of a Redis wrong that were met, or that a parser takes for something else."""

LOCATIONS = [
    "s3://key:{a}/{b}@bucket/path",
    "s3://key:{a}{b}@bucket",
    "s3://key:{a}{b}",
    "s3:/key:{a}{b}@bucket/path",
    "s3//key:{a}{b}@bucket/path",
    "//key:{a}{b}@bucket/path",
    "filecache::s3://key:{a}/{b}@bucket/path",
    "simplecache::nosuchscheme://key:{a}{b}@bucket/path",
    "nosuchscheme://user:{a}#{b}@host/path",
    "hdfs://user:{a}?{b}@host/path",
    "webhdfs://host/path?password={a}{b}",
    "memory://user:{a}@{b}@host/path",
    "abfss://box@account.dfs.core.windows.net/path?sig={a}{b}",
    "s3://bucket/path;secret_key={a}{b}",
]


def is_shown(text: str, *secrets: str) -> bool:
    """Whether a text has any of them, as written or as a parser or printer changes them."""
    folded = text.casefold()
    return any(secret.casefold() in folded or quote(secret, safe="").casefold() in folded for secret in secrets)


def everything_said(act: Callable[[], object]) -> str:
    """What it prints, logs and raises: as an error line, its repr, and its traceback in both log formats."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    said = []
    try:
        with redirect_stderr(stream):
            try:
                said.append(repr(act()))
            except UnderstudyError as error:
                say_error(error)
                said += [str(error), repr(error), repr(error.args)]
                for form in (TextLines(), JsonFormatter()):
                    info = (type(error), error, error.__traceback__)
                    said.append(form.format(logging.LogRecord("x", 40, "here", 1, "%s", (error,), info)))
    finally:
        logging.getLogger().removeHandler(handler)
    return "\n".join([*said, stream.getvalue()])


def test_no_mistake_in_the_url_of_a_redis_shows_its_password() -> None:
    for form in MISTAKES:
        url = form.format(a=HALVES[0], b=HALVES[1])
        assert not is_shown(masked(url), *HALVES)
        for make in (
            RedisBus,
            lambda url: SyncPublisher(url, "flights"),
            lambda url: StreamServer(url, request_timeout_ms=9),
        ):
            assert not is_shown(everything_said(partial(make, url)), *HALVES)


def test_no_mistake_in_the_location_of_a_checkpoint_shows_its_secret() -> None:
    for form in LOCATIONS:
        location = form.format(a=HALVES[0], b=HALVES[1])
        assert not is_shown(masked_location(location), *HALVES)
        assert not is_shown(everything_said(partial(open_checkpoint_files, location)), *HALVES)
        assert not is_shown(NodeSettings(checkpoint=location).application, *HALVES)


def test_settings_that_are_printed_or_refused_show_no_secret() -> None:
    for form in [*MISTAKES, *LOCATIONS]:
        url = form.format(a=HALVES[0], b=HALVES[1])
        settings = RouterSettings(redis="redis://host", application_id="x", seed=url)
        assert not is_shown(f"{settings!r} {settings}", *HALVES) or "://" not in url
        with pytest.raises(ValidationError) as caught:
            RouterSettings(redis=[url], application_id={"x": url}, port=url)
        assert not is_shown(str(caught.value), *HALVES)
        with pytest.raises(ValidationError) as caught:
            RouterSettings(redis=[url], application_id={"x": url})
        assert not is_shown(str(settings_error(caught.value, command="router")), *HALVES)


PASSWORDS = st.text(st.characters(codec="utf-8"), min_size=6, max_size=40).filter(lambda text: len(set(text)) > 3)
PLACES = ("redis://user:{}@host:6379/0", "redis://:{}@host", "redis+sentinel://me:{}@a:1,b:2/us", "unix://:{}@/run/s")


@given(PASSWORDS, st.sampled_from(PLACES), st.booleans())
def test_whatever_a_password_is_made_of_it_is_shown_nowhere(password: str, form: str, is_quoted: bool) -> None:
    url = form.format(quote(password, safe="") if is_quoted else password)
    said = everything_said(lambda: RedisBus(url)) + masked(url) + masked_location(url)
    assert password not in said.replace(form.format("***"), "")
    shown = masked_text(f"at {url}").replace(form.format("***"), "")
    assert password not in shown or any(part.isspace() for part in password)


@given(PASSWORDS)
def test_a_library_that_repeats_a_secret_is_quoted_by_its_kind_alone(password: str) -> None:
    url = f"redis://user:{quote(password, safe='')}@host:6379/0"
    for text in (f"cannot reach {url}", f"bad port {password!s}", f"no host {password.upper()}"):
        error = bus_error(ConnectionError(text), doing="reading", url=url, timeout_ms=1)
        assert password not in str(error).replace("redis://user:***@host:6379/0", "")
    assert words_of(OSError("refused"), url) in {"refused", "OSError, whose text repeats what is hidden here"}


@pytest.mark.parametrize(
    "properties",
    [{"sasl.passwordd": SECRET}, {"ssl.key.pem": SECRET}, {"sasl.password": SECRET, "security.protocol": SECRET}],
)
def test_kafkas_client_does_not_repeat_a_secret_property(properties: dict[str, str]) -> None:
    def make() -> KafkaConfig:
        return KafkaConfig(
            servers=f"SASL_SSL://me:{SECRET}@broker:9092", topics=("t",), properties=tuple(properties.items())
        )

    assert not is_shown(everything_said(make), SECRET)


@pytest.mark.parametrize("form", [TextLines(), JsonFormatter()])
def test_a_log_line_of_whatever_library_has_no_login_of_a_url(form: logging.Formatter) -> None:
    try:
        raise OSError(f"cannot open s3://key:{SECRET}@bucket/path?token={SECRET}&sp=rl&sig={SECRET}")
    except OSError as error:
        record = logging.LogRecord("lib", 30, "x", 1, "see %s", (error,), (OSError, error, error.__traceback__))
    record.url = f"redis://me:{SECRET}@host"
    line = form.format(record)
    assert not is_shown(line, SECRET)
    assert "s3://key:***@bucket/path" in line
