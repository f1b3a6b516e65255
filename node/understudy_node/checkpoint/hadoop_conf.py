"""Hadoop's client configuration, as far as a reader of HDFS needs it: `core-site.xml` and `hdfs-site.xml`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from understudy_node.checkpoint.store_access import ReadFile
from understudy_shared.base.errors import SettingsError

_FILES = ("core-site.xml", "hdfs-site.xml")


def conf_dir(environ: Mapping[str, str]) -> Path | None:
    """Return the directory of the configuration; None if the environment names no directory."""
    if found := environ.get("HADOOP_CONF_DIR"):
        return Path(found)
    home = environ.get("HADOOP_HOME")
    return Path(home, "etc", "hadoop") if home else None


def hadoop_conf(environ: Mapping[str, str], read_file: ReadFile) -> Mapping[str, str]:
    """Return names and values of the configuration, empty without a directory. Raises SettingsError.

    The user's own files are read, so their XML is trusted.
    """
    folder, found = conf_dir(environ), dict[str, str]()
    for path in [] if folder is None else [folder / name for name in _FILES]:
        if (text := read_file(path)) is None:
            continue
        try:
            properties = ElementTree.fromstring(text).iter("property")  # noqa: S314 -- see above
        except ElementTree.ParseError as error:
            raise SettingsError(f"The file is no XML: {error}", where=str(path)) from None
        pairs = ((each.findtext("name", "").strip(), each.findtext("value", "").strip()) for each in properties)
        found |= {name: value for name, value in pairs if name}
    return found


def namenodes_of(conf: Mapping[str, str], service: str) -> list[str]:
    """Return the ids of a name service's NameNodes, in the order of the configuration; empty if it has no NameNodes."""
    return [each.strip() for each in conf.get(f"dfs.ha.namenodes.{service}", "").split(",") if each.strip()]


def services_in(conf: Mapping[str, str]) -> list[str]:
    """Return the name services that a configuration has."""
    prefix = "dfs.ha.namenodes."
    return sorted(name.removeprefix(prefix) for name in conf if name.startswith(prefix))
