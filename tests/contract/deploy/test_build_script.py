"""`deploy/build.sh` with a Docker that only notes what it is told: which images, for what, by which digest."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.repository import ROOT
from tools.release.texts import version_of

VERSION = version_of((ROOT / "pyproject.toml").read_text())
DIGEST = "sha256:" + "a" * 64
DOCKER = f"""#!/bin/sh
echo "$*" >> "$NOTED"
case "$1 $2" in
    "image inspect")
        case "$*" in *RepoDigests*) echo "r.example/team/understudy-node@{DIGEST}" ;; *) echo 1000000 ;; esac ;;
    create*) echo container ;;
    buildx*) while [ "$1" != --metadata-file ]; do shift; done
        printf '{{\\n  "containerimage.digest": "{DIGEST}",\\n  "x": 1\\n}}' > "$2" ;;
esac
"""


def build(tmp_path: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], list[str], str]:
    """Run the script in a tree of its own; return its output, the calls of Docker, and `dist/images.txt`."""
    tree, docker, noted = tmp_path / "tree", tmp_path / "docker", tmp_path / "noted"
    (tree / "deploy").mkdir(parents=True)
    for name in ("deploy/build.sh", "pyproject.toml"):
        (tree / name).write_bytes((ROOT / name).read_bytes())
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    environ = {**os.environ, "DOCKER": str(docker), "NOTED": str(noted), "BUILD_ARGS": "--build-arg A=b"}
    command = ["sh", str(tree / "deploy" / "build.sh"), *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    images = tree / "dist" / "images.txt"
    told = noted.read_text().splitlines() if noted.exists() else []
    return done, told, images.read_text() if images.exists() else ""


def test_an_image_of_several_architectures_is_pushed_with_provenance_and_known_by_its_digest(tmp_path: Path) -> None:
    platforms = "linux/amd64,linux/arm64"
    done, told, images = build(tmp_path, "--registry", "r.example/team", "--platform", platforms, "--push", "node")
    assert done.returncode == 0, done.stderr
    name = f"r.example/team/understudy-node:{VERSION}"
    assert images == f"{name}@{DIGEST} dist/understudy-node-{VERSION}.cdx.json\n"
    (built,) = [line for line in told if line.startswith("buildx build")]
    for part in (f"--platform {platforms}", "--provenance mode=max", "--sbom true", "--push", "A=b", f"--tag {name}"):
        assert part in built
    assert f"create {name}@{DIGEST}" in told


def test_without_a_registry_nothing_is_pushed_and_several_architectures_are_refused(tmp_path: Path) -> None:
    done, told, images = build(tmp_path)
    assert (done.returncode, images) == (0, "")
    assert not [line for line in told if line.startswith("push")]
    refused, told, _ = build(tmp_path / "again", "--platform", "linux/arm64")
    assert (refused.returncode, told) == (64, [])
    assert "--platform needs --push" in refused.stderr
