"""The running query as `announcer` needs it, read over py4j.

The listener is our own py4j proxy, which reads two fields of an event. PySpark's `StreamingQueryListener` builds the
whole event in Python: some 70 ms of calls, with which it falls seconds behind a quick query.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from understudy_pipeline.announcing.plan_reader import read_plan
from understudy_pipeline.announcing.query_plan import QueryPlan
from understudy_shared.base.errors import UnderstudyError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

OnCommit = Callable[[int], None]
"""Called with the committed version. Must return at once: all listeners of a session share a thread."""

OnEnd = Callable[[], None]


class SparkQuery:
    """One run of a started query in a classic session (not Spark Connect)."""

    def __init__(self, query: StreamingQuery) -> None:
        from pyspark import SparkContext  # noqa: PLC0415  # slow to load, unless a query runs here already

        handle = getattr(query, "_jsq", None)
        if handle is None or SparkContext._gateway is None:  # noqa: SLF001  # the only way to the JVM
            raise UnderstudyError(
                "this is not a query of a Spark session in this process",
                where=f"announce({type(query).__name__})",
                fix="Call announce in the driver, with what DataStreamWriter.start() returned; not over Spark Connect",
            )
        self._query: Any = handle
        self._gateway: Any = SparkContext._gateway  # noqa: SLF001
        self.query_id: str = handle.id().toString()
        self._run_id: str = handle.runId().toString()

    def last_version(self) -> int | None:
        """Return the last version in the commit log, earlier runs included. None before the first commit."""
        latest = self._query.streamingQuery().commitLog().getLatestBatchId()
        return int(latest.get()) + 1 if latest.isDefined() else None

    def plan(self) -> QueryPlan | None:
        """Return the plan of the newest batch, once this run has finished one."""
        if self._query.lastProgress() is None:
            return None
        execution = self._query.streamingQuery().lastExecution()
        return None if execution is None else read_plan(execution)

    def checkpoint(self) -> str:
        """Return the location of the checkpoint, as Spark resolved it: absolute, with its scheme."""
        return str(self._query.streamingQuery().resolvedCheckpointRoot())

    def is_active(self) -> bool:
        return bool(self._query.isActive())

    def listen(self, on_commit: OnCommit, on_end: OnEnd) -> Callable[[], None]:
        """Call `on_commit` for each commit of this run and `on_end` at its end. Returns a function that stops this."""
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
    """Implements Spark's listener interface. The JVM calls its methods on a py4j thread."""

    def __init__(self, run_id: str, on_commit: OnCommit, on_end: OnEnd) -> None:
        self._run_id = run_id
        self._on_commit = on_commit
        self._on_end = on_end

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  # Spark's name
        """Ignore the event: the query started before the listener was added."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802  # Spark's name
        """Report a finished batch. Spark calls it after it wrote the commit log."""
        progress = event.progress()
        if progress.runId().toString() == self._run_id:
            self._on_commit(int(progress.batchId()) + 1)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802  # Spark's name
        """Ignore the event: nothing was committed."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802  # Spark's name
        """Report the end of this run. Spark calls it for every query of the session."""
        if event.runId().toString() == self._run_id:
            self._on_end()

    class Java:
        """py4j reads here which Java interfaces this class implements."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)
