"""The checkpoints in Spark's own test resources, which earlier releases wrote for Spark's tests of compatibility.

The jar comes through Maven, once, into the checkout's `.cache`.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from tests.support.kafka.maven import fetched_jars

POM = Path(__file__).parent / "golden" / "pom.xml"
_FOLDER = "structured-streaming/"


def jars() -> Path | str:
    return fetched_jars(POM, "spark-golden-jars")


def unpacked(found: Path, folder: Path) -> dict[str, Path]:
    """Unpack them below `folder`; return each checkpoint by its name there."""
    (jar,) = found.glob("*.jar")
    with zipfile.ZipFile(jar) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(_FOLDER)])
    root = folder / _FOLDER
    offsets = [path for path in root.rglob("offsets") if (path.parent / "metadata").exists()]
    return {str(path.parent.relative_to(root)): path.parent for path in sorted(offsets)}
