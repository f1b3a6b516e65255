"""Pages of one key, answered without ASGI, as lookups are: the framework costs more than the search for the key.

Only a service that asks for no credential answers them here. Elsewhere the ASGI way decides what a scan is granted,
which is another action than a lookup. Like a lookup, such a page is never compressed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import orjson

from understudy_shared.auth.principals import UNGUARDED
from understudy_shared.auth.redaction import shown_problem
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.edge import JSON_TYPE, bug
from understudy_shared.http.problems import problem_of
from understudy_shared.http.target import parse_query, split_path
from understudy_shared.questions.scan.prefix import row_columns
from understudy_shared.questions.scan.service import Scans, is_page
from understudy_shared.questions.scan.turns import Asker
from understudy_shared.server.direct import Exchange, reply_problem
from understudy_shared.spark.key_codec import KeyCodec


class Seeks:
    """The answers to questions for one key."""

    def __init__(self, scans: Scans) -> None:
        self._scans = scans
        self._answering: set[asyncio.Task[None]] = set()

    def answer_directly(self, target: bytes, exchange: Exchange) -> bool:
        """See `AnswersDirectly`. What cannot be parsed is left to ASGI, which says what is wrong with it."""
        path, _, query = target.partition(b"?")
        if b"prefix=" not in query or exchange.authorization is not UNGUARDED or not is_page(path):
            return False
        try:
            _, _, name, _ = split_path(path)
            given = parse_query(query)
            if not _is_of_one_key(given, self._scans.store(name).codec):
                return False
        except UnderstudyError:
            return False
        task = asyncio.get_running_loop().create_task(self._answer(name, given, exchange), name="a seek")
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        return True

    async def _answer(self, name: str, given: Mapping[str, str], exchange: Exchange) -> None:
        asker = Asker()
        exchange.when_left(asker.leave)
        try:
            body = await self._scans.answer("scan", name, given, exchange.authorization, asker)
        except Exception as error:
            problem = problem_of(error) if isinstance(error, UnderstudyError) else bug(error)
            reply_problem(exchange, shown_problem(exchange.authorization.principal, problem))
        else:
            exchange.reply(200, JSON_TYPE, body)


def _is_of_one_key(given: Mapping[str, str], codec: KeyCodec) -> bool:
    """Whether a prefix has all columns of the key. With a range, one key of timers has many rows."""
    if "prefix" not in given or "from" in given or "to" in given:
        return False
    try:
        values = orjson.loads(given["prefix"])
    except orjson.JSONDecodeError:
        return False
    return isinstance(values, list) and len(values) == row_columns(codec)
