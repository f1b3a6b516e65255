"""The simulation of a large cluster runs, and its cluster recovers from deaths: at a size that takes half a minute."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.repository import ROOT

SIZE = ["--nodes", "20", "--replicas", "800", "--seconds", "3", "--rebalance-delay-ms", "3000", "--listeners", "2"]


@pytest.mark.full
def test_a_simulated_cluster_promotes_and_replaces_what_its_dead_nodes_had(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.scale", *SIZE, "--no-parts", "--report", str(tmp_path / "report.json")]
    subprocess.run(command, cwd=ROOT, check=True, timeout=280, stdout=subprocess.DEVNULL)
    (found,) = json.loads((tmp_path / "report.json").read_text())["rounds"]["20 nodes, 800 replicas"]
    assert found["heartbeats_per_s"] > 10
    for how in ("killed", "hung"):
        times = [found[f"{how}_{what}_s"] for what in ("none_alive_to_router", "none_active", "none_named")]
        assert times == sorted(times)
        assert not math.isinf(times[-1])
