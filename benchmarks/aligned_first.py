"""The first row of the first query of a new JVM, by Spark's Kafka source and by the accelerator jar, by turns.

    python -m benchmarks.aligned_first [--rounds 3] [--flames docs/images]

With `--flames` nothing is timed: flame graphs are drawn of the query's first five seconds, from its `load()`, of the
driver's JVM (by Java's flight recorder) and of the planner (by py-spy, which must be on the path).
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

from tests.support.kafka.broker import KafkaBroker, jars
from tests.support.repository import ROOT
from tests.support.spark.session import spark_session
from tools.build_jar import build

from benchmarks.aligned_speed import PARTITIONS, SPARK, TOPICS
from benchmarks.aligned_whole import FEW, JAR, our_frame, spark_frame
from benchmarks.aligned_world import fill, session_conf, spark_kafka_jars, started, wait_for_batch
from benchmarks.flame_graph import Stack, flame_svg, stacks_of, working
from understudy.demo.java_home import java_home

RECORDS = 400_000
FLAMES_S = 5
_LOOKS, _BEFORE_PYTHON_S = 200, 0.02
_JAVA_PERIOD, _DEPTH = "5ms", 256
_MIN_SHARE = 0.01
_LIMIT_S = 120

_PART_OF_NAME = re.compile(r"[A-Za-z]+([ -][A-Za-z]+){0,3}")
"""The part of a thread's name that others of its kind have, too."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flames", type=Path)
    parser.add_argument("--query", nargs=2, metavar=("SERVERS", "SOURCE"), help="one query, in a JVM of its own")
    options = parser.parse_args()
    if options.query:
        print(_first_query(*options.query, flames=options.flames))
        return
    if options.flames and shutil.which("py-spy") is None:
        print("skipped: no py-spy", flush=True)
        return
    broker_jars = jars()
    if isinstance(broker_jars, str):
        raise SystemExit(f"there is no broker to measure with: {broker_jars}")
    with tempfile.TemporaryDirectory(prefix="understudy-bench-", ignore_cleanup_errors=True) as name:
        broker = KafkaBroker(Path(name), broker_jars)
        try:
            broker.start()
            for topic in TOPICS:
                broker.make_topic(PARTITIONS, name=topic)
            fill(broker.servers, TOPICS, partitions=PARTITIONS, records=RECORDS)
            if options.flames:
                _asked(broker.servers, JAR, "--flames", str(options.flames))
            else:
                _print({source: [] for source in (SPARK, JAR)}, broker.servers, options.rounds)
        finally:
            broker.kill()


def _print(took_s: Mapping[str, list[float]], servers: str, rounds: int) -> None:
    for _ in range(rounds):
        for source, each in took_s.items():
            each.append(float(_asked(servers, source)))
    for source, each in took_s.items():
        print(f"{source:22} {median(each):.2f} s ({', '.join(f'{took:.2f}' for took in each)})")
    ratios = [ours / theirs for theirs, ours in zip(took_s[SPARK], took_s[JAR], strict=True)]
    print(f"{JAR} against {SPARK}: {median(ratios):.2f} times ({', '.join(f'{ratio:.2f}' for ratio in ratios)})")


def _asked(servers: str, source: str, *more: str) -> str:
    """Run one query in a process of its own; return the last line that it prints."""
    command = [sys.executable, "-m", "benchmarks.aligned_first", "--query", servers, source, *more]
    answer = subprocess.run(command, check=True, timeout=_LIMIT_S, stdout=subprocess.PIPE, text=True)
    return answer.stdout.splitlines()[-1]


def _first_query(servers: str, source: str, *, flames: Path | None) -> str:
    """Return the seconds from `load()` to the commit of the first batch."""
    with tempfile.TemporaryDirectory(prefix="understudy-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        conf = session_conf(folder / "spark")
        conf["spark.jars"] = ",".join(map(str, [*sorted(spark_kafka_jars().glob("*.jar")), build()]))
        if flames is not None:
            conf = _recorded(conf, folder)
        with spark_session(folder / "spark", extra=conf) as spark:
            frame = spark_frame(spark, servers) if source == SPARK else our_frame(spark, servers, folder / "spool")
            began, began_s, checkpoint = datetime.now(UTC), time.perf_counter(), folder / "checkpoint"
            query = started(frame(TOPICS, 100_000 if flames else FEW), checkpoint, available_now=False)
            wait_for_batch(query, checkpoint, 0)
            took_s = time.perf_counter() - began_s
            if flames is not None:
                time.sleep(max(0.0, FLAMES_S - took_s))
            query.stop()
        if flames is not None:
            _draw(folder, flames, began)
    return f"{took_s:.3f}"


def _recorded(conf: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Record the JVM, and the first planner by a Python that lets py-spy look at it."""
    looking = f"exec py-spy record -f raw -o {folder}/planner -p $$ -r {_LOOKS} -d {FLAMES_S}"
    folder.joinpath("python-recorded").write_text(
        f"""#!/bin/sh
mkdir {folder}/first 2>&- && (sleep {_BEFORE_PYTHON_S}; {looking}) </dev/null >/dev/null 2>&1 &
exec {sys.executable} "$@"
"""
    )
    folder.joinpath("python-recorded").chmod(0o755)
    java = conf["spark.driver.extraJavaOptions"]
    recording = f"-XX:StartFlightRecording=filename={folder}/driver.jfr,dumponexit=true"
    recording += f",jdk.ExecutionSample#period={_JAVA_PERIOD} -XX:FlightRecorderOptions=stackdepth={_DEPTH}"
    return {
        **conf,
        "spark.driver.extraJavaOptions": f"{java} {recording}",
        "spark.pyspark.driver.python": str(folder / "python-recorded"),
    }


def _draw(folder: Path, into: Path, began: datetime) -> None:
    jfr = str(java_home(ROOT / ".cache").path / "bin" / "jfr")
    events = ["--json", "--stack-depth", str(_DEPTH), "--events", "jdk.ExecutionSample"]
    command = [jfr, "print", *events, f"{folder}/driver.jfr"]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=_LIMIT_S).stdout)
    driver = Counter(_java_stacks(found["recording"]["events"], began))
    waits = ("wait (", "_run (", "get (", "select (", "_listen (")
    for name, stacks in (
        ("first-driver", driver),
        ("first-planner", working(stacks_of((folder / "planner").read_text()), waits)),
    ):
        path = into / f"flames-{name}.svg"
        title = f"{name}, {FLAMES_S} s from load(): {sum(stacks.values()):,} looks"
        path.write_text(flame_svg(stacks, title, min_share=_MIN_SHARE))
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB", file=sys.stderr)


def _java_stacks(events: Sequence[Any], began: datetime) -> Iterator[Stack]:
    """Yield the stacks of the first seconds, outermost call first, below the name of their thread."""
    for event in events:
        values = event["values"]
        if not timedelta(0) <= datetime.fromisoformat(values["startTime"]) - began < timedelta(seconds=FLAMES_S):
            continue
        calls = [_call(frame["method"]) for frame in values["stackTrace"]["frames"]]
        named = _PART_OF_NAME.match(values["sampledThread"]["javaName"] or "")
        yield (named[0] if named else "?", *(call for call in reversed(calls) if "Lambda" not in call))


def _call(method: Any) -> str:
    """Return the class, without its package, and the method."""
    return f"{method['type']['name'].rpartition('.')[2].rpartition('/')[2]}.{method['name']}"


if __name__ == "__main__":
    main()
