"""The aligned source beside Spark's own Kafka source: throughput, latency of a batch, order against latency.

    python -m benchmarks.aligned [--records 1200000] [--rounds 3] [--only throughput|latency|order]

One broker, one Spark session, the same records and columns, sources by turns. `not ahead` writes each batch to the
spool when Spark asks for it (docs/decisions/0024-spool-ahead.md). `ranges only` is a source whose planner does nothing
and whose executors read as ours do without a spool: the least that planning by Kafka's time index costs. `constants in
Python` reads nothing: the least that a source in Python costs. Spark's Kafka source is the newest that Maven gave
(benchmarks/spark_kafka_jars), its client Java's.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.aligned_order import order_against_latency
from benchmarks.aligned_picture import picture
from benchmarks.aligned_speed import (
    AT_ONCE,
    FLOOR,
    LATENCY_ROWS,
    OURS,
    RATE,
    SPARK,
    Run,
    fill_topics,
    index_ms,
    latency,
    latest_offset_share,
    throughput,
)
from benchmarks.aligned_world import World, world

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "order-against-latency.svg"
BATCH = 100_000
BATCHES, WARM_UP = 30, 5
PARTS = ("throughput", "latency", "order")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="of records, for order against latency")
    parser.add_argument("--only", choices=PARTS, action="append")
    options = parser.parse_args()
    wanted = options.only or PARTS
    with world() as running:
        if wanted != ["order"]:
            fill_topics(running, options.records)
        if "throughput" in wanted:
            print_throughput(throughput(running, records=options.records, batch=BATCH, rounds=options.rounds))
        if "latency" in wanted:
            _print_latency(latency(running, batches=BATCHES, warm_up=WARM_UP, rounds=options.rounds))
            print(f"a plan's questions to Kafka's time index: {index_ms(running):.1f} ms", flush=True)
        if "order" in wanted:
            _print_order(running, seconds=options.seconds, rounds=options.rounds)


def print_throughput(runs: Mapping[str, Sequence[Run]]) -> None:
    print(f"records/s of whole queries, median and best of rounds; of batches after the first; batches of {BATCH:,}")
    base = runs[SPARK]
    for name, each in runs.items():
        rates, ratios = [run.records_s for run in each], _ratios(each, base)
        print(
            f"  {name:22} {median(rates):9,.0f} {max(rates):9,.0f}   {median(ratios):.2f} of Spark's "
            f"(rounds: {', '.join(f'{ratio:.2f}' for ratio in ratios)}); later batches "
            f"{median(run.later_s for run in each):,.0f}"
        )
        print(f"  {'':22} {_split(each[-1].durations_ms)}", flush=True)
    _print_shares({name: [run.durations_ms for run in each] for name, each in runs.items()})
    print(f"  understudy against Spark's Kafka source: {median(_ratios(runs[OURS], base)):.2f} (goal 0.7)", flush=True)
    ahead = [run.later_s / other.later_s for run, other in zip(runs[OURS], runs[AT_ONCE], strict=True)]
    print(f"  spool ahead against not ahead, later batches: {median(ahead):.2f}", flush=True)


def _ratios(runs: Sequence[Run], peers: Sequence[Run]) -> Sequence[float]:
    """Round by round: what else the machine does changes from round to round."""
    return [run.records_s / peer.records_s for run, peer in zip(runs, peers, strict=True)]


def _print_latency(splits: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    print(f"a batch of {LATENCY_ROWS} rows, ms; medians of {BATCHES} batches, then median and least of rounds")
    times = {name: [each["triggerExecution"] for each in rounds] for name, rounds in splits.items()}
    for name, rounds in splits.items():
        ratio = median(times[name]) / median(times[SPARK])
        row = f"{median(times[name]):6.0f} {min(times[name]):6.0f}   {ratio:.2f} x Spark's Kafka source"
        print(f"  {name:22} {row}; {_split(rounds[-1])}", flush=True)
    _print_shares(splits)
    for peer in (SPARK, RATE, FLOOR, AT_ONCE):
        ratio, least = median(times[OURS]) / median(times[peer]), min(times[OURS]) / min(times[peer])
        goal = " (goal 1.5 x)" if peer in (SPARK, RATE) else ""
        print(f"  understudy against {peer}: {ratio:.2f} x, least {least:.2f} x{goal}", flush=True)
    floor = median(times[FLOOR]) / median(times[RATE])
    print(f"  {FLOOR} against {RATE}: {floor:.2f} x, least {min(times[FLOOR]) / min(times[RATE]):.2f} x", flush=True)


def _print_shares(splits: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    shares = ", ".join(f"{name} {latest_offset_share(rounds):.0%}" for name, rounds in splits.items())
    print(f"  latestOffset's share of a batch: {shares}", flush=True)


def _print_order(running: World, *, seconds: float, rounds: int) -> None:
    outcomes = order_against_latency(running, seconds=seconds, rounds=rounds)
    print("order against latency: max_task_idle_ms, records, violations, enforced, p50 and p95 ms of the timely topic")
    for each in outcomes:
        print(
            f"  {each.idle_ms:5} {each.records:6,} {each.violations:6,} ({each.violations_percent:.1f} %) "
            f"{each.enforced:6,} {each.on_time_p50_ms:8,.0f} {each.on_time_p95_ms:8,.0f}",
            flush=True,
        )
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(outcomes))


def _split(durations_ms: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {took:.0f}" for name, took in durations_ms.items())


if __name__ == "__main__":
    main()
