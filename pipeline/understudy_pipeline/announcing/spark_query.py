"""The running query as `announcing` needs it, read over py4j.

The listener is a gateway proxy of our own that reads two fields of an event. PySpark's `StreamingQueryListener` builds
the whole event in Python, some 70 ms of calls, and falls behind a quick query by seconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from understudy_pipeline.announcing.plan_reader import read_plan
from understudy_pipeline.announcing.query_plan import QueryPlan
from understudy_shared.errors import UnderstudyError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

OnCommit = Callable[[int], None]
"""Told the version that was committed; must return at once, since all listeners of a session share a thread."""

OnEnd = Callable[[], None]


class SparkQuery:
    """A started query of a classic session (not Spark Connect). One of these belongs to one run of the query."""

    def __init__(self, query: StreamingQuery) -> None:
        from pyspark import SparkContext  # noqa: PLC0415  # heavy: only where a query runs it is loaded already

        handle = getattr(query, "_jsq", None)
        if handle is None or SparkContext._gateway is None:  # noqa: SLF001  # the only way to the JVM
            raise UnderstudyError(
                "this is no query of a Spark session in this process",
                where=f"announce({type(query).__name__})",
                fix="Call announce in the driver, with what DataStreamWriter.start() returned; not over Spark Connect",
            )
        self._query: Any = handle
        self._gateway: Any = SparkContext._gateway  # noqa: SLF001
        self.query_id: str = handle.id().toString()
        self._run_id: str = handle.runId().toString()

    def last_version(self) -> int | None:
        """The last version of the commit log, also of earlier runs; None before the first."""
        latest = self._query.streamingQuery().commitLog().getLatestBatchId()
        return int(latest.get()) + 1 if latest.isDefined() else None

    def plan(self) -> QueryPlan | None:
        """The plan of the newest batch, once this run has finished one."""
        if self._query.lastProgress() is None:
            return None
        execution = self._query.streamingQuery().lastExecution()
        return None if execution is None else read_plan(execution)

    def is_active(self) -> bool:
        return bool(self._query.isActive())

    def listen(self, on_commit: OnCommit, on_end: OnEnd) -> Callable[[], None]:
        """Be told of this run's commits until its end; returns what stops it."""
        from pyspark.java_gateway import ensure_callback_server_started  # noqa: PLC0415  # as above

        # PySpark annotates nothing here.
        ensure_callback_server_started(self._gateway)  # type: ignore[no-untyped-call]
        proxy = _CommitListener(self._run_id, on_commit, on_end)
        listener = self._gateway.jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(proxy)
        streams = self._query.sparkSession().streams()
        streams.addListener(listener)

        def stop() -> None:
            with contextlib.suppress(Exception):  # the JVM may have ended, and the listener with it
                streams.removeListener(listener)

        return stop


class _CommitListener:
    """Spark's listener interface; its methods are called by the JVM, on a thread of py4j."""

    def __init__(self, run_id: str, on_commit: OnCommit, on_end: OnEnd) -> None:
        self._run_id = run_id
        self._on_commit = on_commit
        self._on_end = on_end

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  # Spark's name
        """Came before there was a listener."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802  # Spark's name
        """A batch has finished: Spark says so after it wrote the commit log."""
        progress = event.progress()
        if progress.runId().toString() == self._run_id:
            self._on_commit(int(progress.batchId()) + 1)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802  # Spark's name
        """Nothing was committed."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802  # Spark's name
        """This run, or another query of the session, has ended."""
        if event.runId().toString() == self._run_id:
            self._on_end()

    class Java:
        """Read by py4j."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)
