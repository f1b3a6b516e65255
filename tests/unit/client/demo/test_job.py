"""How the demo's job starts its query, and what it says of one that fails; stand-ins in place of Spark's queries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from understudy.demo import job as job_module
from understudy.demo.job import DemoJob, query_failed
from understudy.demo.settings import DemoSettings
from understudy_shared.base.errors import UnderstudyError

LATE = "[STREAM_FAILED] Query terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"
SETTINGS = DemoSettings(checkpoint=Path("/checkpoint"), input_redis="redis://input")

RAISED = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] \
Failed when Python streaming data source perform latestOffset: Traceback (most recent call last):
  File "source.py", line 1, in latestOffset
ValueError: something before
  File "source.py", line 2, in latestOffset
understudy_aligned.inputs.protocol.DataLostError: entries of the stream 'flights:0' are lost: the stream is gone
 SQLSTATE: 38000 SQLSTATE: XXKST"""


class StandInQuery:
    """A query that is opening its source for a while, and then runs or has failed."""

    def __init__(self, failure: str = "", *, looks: int = 3) -> None:
        self._failure = failure
        self._looks = looks

    @property
    def status(self) -> dict[str, str]:
        self._looks -= 1
        return {"message": "Initializing sources" if self._looks > 0 else "Waiting for next trigger"}

    @property
    def isActive(self) -> bool:  # noqa: N802  # Spark's name
        return not self._failure or self._looks > 0

    def exception(self) -> Exception | None:
        return Exception(self._failure) if self._failure else None


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[StandInQuery]], None]:
    """Gives the queries that are started, one after another."""

    def give(queries: list[StandInQuery]) -> None:
        monkeypatch.setattr(job_module, "start_query", lambda spark, settings: queries.pop(0))

    return give


def start() -> Any:
    return DemoJob().start_with_retries(None, SETTINGS)  # type: ignore[arg-type]  # handed on to `start_query`


def test_a_query_whose_planner_was_slow_to_start_is_started_again(
    starting: Callable[[list[StandInQuery]], None],
) -> None:
    runs = StandInQuery()
    starting([StandInQuery(LATE), StandInQuery(LATE), runs])
    assert start() is runs


def test_a_query_whose_planner_never_starts_is_given_up(starting: Callable[[list[StandInQuery]], None]) -> None:
    left = [StandInQuery(LATE) for _ in range(10)]
    starting(left)
    with pytest.raises(UnderstudyError, match="failed to connect back"):
        start()
    assert len(left) == 6


def test_a_query_that_fails_otherwise_is_not_started_again(starting: Callable[[list[StandInQuery]], None]) -> None:
    left = [StandInQuery("no"), StandInQuery()]
    starting(left)
    with pytest.raises(UnderstudyError, match="the query failed: no"):
        start()
    assert len(left) == 1


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (RAISED, "entries of the stream 'flights:0' are lost: the stream is gone"),
        ("\n  [SOME_ERROR] first\nsecond", "[SOME_ERROR] first"),
        ("java.lang.StackOverflowError: deep\n  at a", "java.lang.StackOverflowError: deep"),
        ("", "Exception"),
    ],
    ids=["source", "spark", "java", "nothing"],
)
def test_a_query_that_failed_is_reported_in_one_line(said: str, reason: str) -> None:
    assert query_failed(Exception(said), Path("/checkpoint")).what == f"the query failed: {reason}"
