"""The planner's process for the jar: `python -m understudy_aligned.accelerator.planner <protocol> [<input>...]`.

It answers the calls of one run of a query, like the process that PySpark starts for a Python source. If it is started
before there is a query, it imports the kinds of inputs that the query will probably read.
"""

from __future__ import annotations

import base64
import json
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from understudy_aligned.accelerator.serving import Frames, serve, to_json
from understudy_aligned.open_inputs import OPENERS, OpenInputs, check_folders, check_opened
from understudy_aligned.option_parsing import parse_options
from understudy_aligned.options import AlignedOptions
from understudy_aligned.reading import ReadTask
from understudy_aligned.refusals import fixed_columns, streams_only
from understudy_aligned.rows import RowOptions, spark_schema
from understudy_aligned.stream import AlignedStream, remove_spool_on_sigterm

Reply = Mapping[str, object]


class PlannerCalls:
    """The calls of the jar. The first one is `load` or `open`, which brings the options."""

    def __init__(self) -> None:
        self._options: AlignedOptions | None = None
        self._inputs: OpenInputs | None = None
        self._folder: Path | None = None
        self._stream: AlignedStream | None = None

    def answer(self, request: bytes, _: Frames) -> bytes:
        """Answer one request: a JSON object with the name of the call and its arguments."""
        arguments = json.loads(request)
        calls: Mapping[str, Callable[..., Reply]] = {
            "load": self.load,
            "open": self.open,
            "checkpoint": self.checkpoint,
            "initial": self.initial,
            "finish_at_current_ends": self.finish_at_current_ends,
            "latest": self.latest,
            "tasks": self.tasks,
            "metrics": self.metrics,
        }
        return to_json(calls[arguments.pop("call")](**arguments))

    def load(self, options: Mapping[str, str], *, has_schema: bool, is_batch: bool) -> Reply:
        """Parse and check the options, as `load()` does. Return what the jar needs to know of them."""
        if is_batch:
            raise streams_only()
        parsed = parse_options(dict(options))
        check_folders(parsed)
        inputs = OpenInputs(parsed.inputs)
        check_opened(parsed, inputs)
        if has_schema:
            raise fixed_columns()
        self._options, self._inputs = parsed, inputs
        kind, most = parsed.read_limit
        pickled = base64.b64encode(pickle.dumps(parsed)).decode()
        kinds = [config.kind for config in parsed.inputs]
        return {"schema": spark_schema(RowOptions.of(parsed)), f"max_{kind}": most, "options": pickled, "inputs": kinds}

    def open(self, options: str) -> Reply:
        """Take options that another process has parsed."""
        self._options = pickle.loads(base64.b64decode(options))  # noqa: S301  # made by `load`
        return {}

    def checkpoint(self, folder: str) -> Reply:
        """Take this source's folder in Spark's checkpoint, which is locked at the first use."""
        self._folder = Path(folder)
        return {}

    def initial(self) -> Reply:
        """Return where a new checkpoint begins."""
        return {"offset": json.dumps(self._get_stream().initial_offset())}

    def finish_at_current_ends(self) -> Reply:
        """Read up to the current ends only (the trigger AvailableNow)."""
        self._get_stream().finish_at_current_ends()
        return {}

    def latest(self, start: str, *, is_everything: bool, unread: str | None = None) -> Reply:
        """Plan the next batch and return its end, or null without a batch. `is_everything` is set for the trigger
        Once: read up to the current ends. `unread` is a spool file that has no readers any more.
        """
        before, stream = json.loads(start), self._get_stream()
        if unread is not None:
            stream.reuse_spool_file(unread)
        end = stream.latest_offset_of_all(before) if is_everything else stream.latest_offset(before)
        return {"offset": None if end == before else json.dumps(end)}

    def tasks(self, start: str, end: str) -> Reply:
        """Return what Spark tasks read between two offsets."""
        return {"tasks": [_described(task) for task in self._get_stream().tasks(json.loads(start), json.loads(end))]}

    def metrics(self) -> Reply:
        """Return the metrics for the query's progress; null before the planner has started."""
        found = None if self._stream is None else self._stream.metrics()
        return {"metrics": None if found is None else json.dumps(found)}

    def remove_spool(self) -> None:
        """Clean up before the process exits at once."""
        if self._stream is not None:
            self._stream.remove_spool()

    def _get_stream(self) -> AlignedStream:
        if self._stream is None:
            assert self._options is not None, "load or open comes first"
            self._stream = AlignedStream(self._options, self._inputs, spools_rows=True, folder=self._folder)
        return self._stream


def _described(task: ReadTask) -> Mapping[str, object]:
    """Describe a task: the file with its rows, its record batches there, and the same task without the file."""
    places = [planned.spooled for planned in task.ranges if planned.spooled is not None]
    unspooled = replace(task, ranges=tuple(replace(planned, spooled=None) for planned in task.ranges))
    return {
        "file": places[0][0] if len(places) == len(task.ranges) else None,
        "batches": [place.batch for _, of_range in places for place in of_range],
        "task": base64.b64encode(pickle.dumps(unspooled)).decode(),
    }


def main() -> None:
    calls = PlannerCalls()
    remove_spool_on_sigterm(calls.remove_spool)
    for kind in sys.argv[2:]:
        OPENERS[kind]()
    serve(calls.answer, at_end=calls.remove_spool)


if __name__ == "__main__":
    main()
