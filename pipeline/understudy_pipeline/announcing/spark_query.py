"""The running query as `announcer` needs it, read over py4j.

The listener is our own py4j proxy, which reads two fields of an event. PySpark's `StreamingQueryListener` builds the
whole event in Python: some 70 ms of calls, so it would fall seconds behind a quick query.

The plan is read into plain values, once per query: every attribute access is a call to the JVM. Nodes of a plan are
recognised by their class names, which are the same in all of Spark 4.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from understudy_pipeline.announcing.query_plan import (
    Function,
    Output,
    PlanColumn,
    QueryPlan,
    StatefulAggregate,
    StatefulJoin,
    WrittenAggregate,
)
from understudy_shared.base.errors import UnderstudyError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

OnCommit = Callable[[int], None]
"""Called with the committed version. Must return at once: all listeners of a session share a thread."""

OnEnd = Callable[[], None]


JavaObject = Any
"""An object in the JVM. py4j resolves its members at run time."""

_FINAL_AGGREGATES = frozenset({"HashAggregateExec", "SortAggregateExec", "ObjectHashAggregateExec"})
_SAVING = frozenset({"StateStoreSaveExec", "SessionWindowStateStoreSaveExec"})
_STREAMLINE = "StatefulStreamlineAggregateExec"
"""The aggregation of Real-Time Mode: it merges each row into the state, and is below no other."""

_JOIN = "StreamingSymmetricHashJoinExec"
_SAME_COLUMN = frozenset({"Cast", "KnownFloatingPointNormalized", "NormalizeNaNAndZero"})
"""Expressions that Spark puts around a column that is compared with another; it stays that column."""

_BETWEEN_EXECUTED = frozenset({"InputAdapter", "SortExec", "WholeStageCodegenExec"})
"""Nodes that may lie between the final aggregation and the operator that saves its buffers."""

_BETWEEN_WRITTEN = frozenset({"EventTimeWatermark", "Filter", "Project", "SubqueryAlias", "View"})
"""Nodes that may lie between an alias and the aggregation that it names."""

_STATISTICS = frozenset(
    {"VarianceSamp", "StddevSamp", "Skewness", "Kurtosis", "CovSample", "Corr"},
)
"""Functions that a setting of Spark makes NaN where they are null."""

_MADE_UP_ALIAS = "__auto_generated"


def read_plan(execution: JavaObject) -> QueryPlan:
    """Read the plan of one micro-batch (a `QueryExecution`)."""
    executed: list[StatefulAggregate] = []
    joins: list[StatefulJoin] = []
    _visit_executed(execution.executedPlan(), None, executed, joins)
    written: list[WrittenAggregate] = []
    _visit_written(execution.analyzed(), _Above(), written)
    return QueryPlan(tuple(executed), tuple(written), tuple(joins))


def _visit_executed(
    node: JavaObject, final: JavaObject | None, found: list[StatefulAggregate], joins: list[StatefulJoin]
) -> None:
    kind = _class(node)
    if kind in _SAVING and final is not None:
        found.append(_stateful_aggregate(node, final, node.child()))
    if kind == _STREAMLINE:
        found.append(_stateful_aggregate(node, node, node))
    if kind == _JOIN:
        left, right = (tuple(map(_column_name, _each(keys))) for keys in (node.leftKeys(), node.rightKeys()))
        joins.append(StatefulJoin(node.stateInfo().get().operatorId(), left, right))
    below = node if kind in _FINAL_AGGREGATES else final if kind in _BETWEEN_EXECUTED else None
    for child in _each(node.children()):
        _visit_executed(child, below, found, joins)


def _stateful_aggregate(save: JavaObject, final: JavaObject, saved: JavaObject) -> StatefulAggregate:
    """Describe what `save` saves, which is the output of `saved`, of the functions of `final`."""
    has_session = _class(save) == "SessionWindowStateStoreSaveExec"
    keys = save.keyWithoutSessionExpressions() if has_session else save.keyExpressions()
    return StatefulAggregate(
        operator_id=save.stateInfo().get().operatorId(),
        state_format=save.stateFormatVersion(),
        keys=tuple(_column(key) for key in _each(keys)),
        saved=tuple(_column(column) for column in _each(saved.output())),
        functions=tuple(_function(each) for each in _each(final.aggregateExpressions())),
        session=_column(save.sessionExpression()) if has_session else None,
    )


def _column(attribute: JavaObject) -> PlanColumn:
    return PlanColumn(attribute.exprId().id(), attribute.name(), _type(attribute))


def _column_name(expression: JavaObject) -> str | None:
    while _class(expression) in _SAME_COLUMN:
        expression = expression.child()
    return str(expression.name()) if _class(expression) == "AttributeReference" else None


def _function(expression: JavaObject) -> Function:
    function = expression.aggregateFunction()
    kind = _class(function)
    if kind in _STATISTICS and not function.nullOnDivideByZero():
        kind = f"Legacy{kind}"  # with spark.sql.legacy.statisticalAggregate the result is NaN instead of null
    elif kind == "Corr" and " OR " not in function.evaluateExpression().toString():
        kind = "Corr42"  # Spark up to 4.2 does not check whether one of the columns is constant
    elif kind == "RegrIntercept" and not function.mergeExpressions().apply(1).toString().startswith("if"):
        kind = "RegrIntercept42"  # Spark up to 4.2 divides averages by n and multiplies them again to merge them
    elif kind == "RegrR2" and "xMk" in function.evaluateExpression().toString().partition("yMk")[0]:
        kind = "RegrR2Of3"  # Spark 3 checks the two columns for a constant the other way round: not computed here
    return Function(kind, expression.resultId().id(), function.aggBufferAttributes().size())


@dataclass(slots=True)
class _Above:
    """The alias and the projections above an aggregation."""

    alias: str | None = None
    projections: list[tuple[Output, ...]] = field(default_factory=list)
    """Highest first."""


def _visit_written(node: JavaObject, above: _Above, found: list[WrittenAggregate]) -> None:
    kind = _class(node)
    if kind == "Aggregate":
        found.append(_written_aggregate(node, above))
    below = _Above()
    if kind == "SubqueryAlias":
        alias = node.alias()
        below = above if alias.startswith(_MADE_UP_ALIAS) else _Above(alias)
    elif kind == "Project" and above.alias is not None:
        projection = tuple(_projected(column) for column in _each(node.projectList()))
        below = _Above(above.alias, [*above.projections, projection])
    elif kind in _BETWEEN_WRITTEN:
        below = above
    for child in _each(node.children()):
        _visit_written(child, below, found)


def _projected(column: JavaObject) -> Output:
    inner = _unaliased(column)
    source = inner.exprId().id() if _class(inner) == "AttributeReference" else None
    return Output(column.exprId().id(), column.name(), _type(column), source=source)


def _written_aggregate(node: JavaObject, above: _Above) -> WrittenAggregate:
    grouping = list(_each(node.groupingExpressions()))
    columns = list(_each(node.aggregateExpressions()))
    functions = [function for column in columns for function in _functions(column)]
    return WrittenAggregate(
        grouping_types=tuple(_type(each) for each in grouping),
        outputs=tuple(_output(column, grouping, functions) for column in columns),
        result_ids=frozenset(each.resultId().id() for each in functions),
        projections=tuple(reversed(above.projections)),
        alias=above.alias,
    )


def _output(column: JavaObject, grouping: Sequence[JavaObject], functions: Sequence[JavaObject]) -> Output:
    inner = _unaliased(column)
    shown = next((index for index, each in enumerate(grouping) if each.semanticEquals(inner)), None)
    equal: list[JavaObject] = []
    if _class(inner) == "AggregateExpression":
        # Spark computes equal functions once, under the id of one of them. `inner` is listed itself, because
        # `semanticEquals` is false for a function that is not deterministic.
        equal = [inner, *(each for each in functions if each.semanticEquals(inner) or _is_same_sum(each, inner))]
    return Output(
        id=column.exprId().id(),
        name=column.name(),
        type=_type(inner),
        grouping=shown,
        result_ids=tuple(each.resultId().id() for each in equal),
    )


def _is_same_sum(one: JavaObject, other: JavaObject) -> bool:
    """Whether both sum up the same decimals: up to Spark 4.2 `try_sum` of short ones is computed as their `sum`."""
    first, second = one.aggregateFunction(), other.aggregateFunction()
    return (
        _class(first) == _class(second) == "Sum"
        and _type(first).startswith("decimal(")
        and bool(first.child().semanticEquals(second.child()))
        and one.isDistinct() == other.isDistinct()
        and bool(one.filter().equals(other.filter()))
    )


def _functions(expression: JavaObject) -> Iterator[JavaObject]:
    """Yield the aggregate functions in an expression."""
    if _class(expression) == "AggregateExpression":
        yield expression
        return
    for child in _each(expression.children()):
        yield from _functions(child)


def _unaliased(column: JavaObject) -> JavaObject:
    return column.child() if _class(column) == "Alias" else column


def _type(expression: JavaObject) -> str:
    """Return Spark's name of the type; of an array its JSON, which names the element type."""
    data_type = expression.dataType()
    name: str = data_type.typeName()
    return str(data_type.json()) if name == "array" else name


def _class(node: JavaObject) -> str:
    name: str = node.getClass().getSimpleName()
    return name


def _each(sequence: JavaObject) -> Iterator[JavaObject]:
    """Iterate over the items of a Scala Seq."""
    return (sequence.apply(index) for index in range(sequence.size()))


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
