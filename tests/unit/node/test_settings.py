"""Settings: which value wins, what is refused (KIP-770 statements 60 to 62 are numbered as in docs/kips.md)."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from understudy_node.settings import ClusterNodeSettings, NodeSettings
from understudy_shared.base.errors import SettingsError


def test_statement_60_the_cache_is_10_mib_in_total_by_default() -> None:
    assert NodeSettings(checkpoint="/c").statestore_cache_max_bytes == 10 * 1024 * 1024


def test_statement_61_two_equal_values_are_no_reason_to_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings = NodeSettings(checkpoint="/c", statestore_cache_max_bytes=7, cache_max_bytes_buffering=7)
    assert settings.statestore_cache_max_bytes == 7


def test_statement_61_set_means_given_and_not_different_from_the_default() -> None:
    default = NodeSettings(checkpoint="/c").statestore_cache_max_bytes
    with pytest.warns(DeprecationWarning, match="both set and differ"):
        settings = NodeSettings(checkpoint="/c", statestore_cache_max_bytes=default, cache_max_bytes_buffering=5)
    assert settings.statestore_cache_max_bytes == default


def test_statement_61_the_new_name_wins_from_whatever_place_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "understudy.toml"
    file.write_text("statestore_cache_max_bytes = 7\n")
    monkeypatch.setenv("UNDERSTUDY_CACHE_MAX_BYTES_BUFFERING", "5KiB")
    with pytest.warns(DeprecationWarning, match="use statestore_cache_max_bytes"):
        assert NodeSettings(checkpoint="/c").statestore_cache_max_bytes == 5 << 10
    monkeypatch.setenv("UNDERSTUDY_CONFIG", str(file))
    with pytest.warns(DeprecationWarning, match="both set and differ"):
        assert NodeSettings(checkpoint="/c", cache_max_bytes_buffering=6).statestore_cache_max_bytes == 7


def test_statement_62_zero_is_a_size_and_a_negative_number_is_not() -> None:
    assert NodeSettings(checkpoint="/c", statestore_cache_max_bytes=0).statestore_cache_max_bytes == 0
    with pytest.raises(ValidationError, match="statestore_cache_max_bytes"):
        NodeSettings(checkpoint="/c", statestore_cache_max_bytes=-1)


def test_flags_win_over_variables_and_variables_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "understudy.toml"
    file.write_text('port = 1\nlag_refresh_ms = 11\nworkers = 4\noverlay_max_bytes = "3MiB"\n')
    monkeypatch.setenv("UNDERSTUDY_CONFIG", str(file))
    monkeypatch.setenv("UNDERSTUDY_PORT", "2")
    monkeypatch.setenv("UNDERSTUDY_LAG_REFRESH_MS", "22")
    settings = NodeSettings(checkpoint="/c", port=3)
    assert (settings.port, settings.lag_refresh_ms, settings.workers) == (3, 22, 4)
    assert settings.overlay_max_bytes == 3 << 20


@pytest.mark.parametrize(
    ("checkpoint", "name"),
    [("/data/flights", "flights"), ("s3://bucket/a/flights/", "flights"), ("flights", "flights"), ("/", "application")],
)
def test_an_application_is_named_after_its_checkpoint(checkpoint: str, name: str) -> None:
    assert NodeSettings(checkpoint=checkpoint).application == name


def test_two_nodes_on_one_machine_have_directories_of_their_own_and_the_same_again_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def directory(**settings: object) -> Path:
        values = {"checkpoint": "/a/flights", "redis": "redis://a", **settings}
        return ClusterNodeSettings(**values).data_directory  # type: ignore[arg-type]

    nodes: list[dict[str, object]] = [
        {"port": 7101},
        {"port": 7102},
        {"node_id": "a"},
        {"node_id": "b/../c"},
        {"node_id": "é" * 200},
    ]
    directories = [directory(**node) for node in nodes]
    assert len(set(directories)) == len(nodes)
    assert directories == [directory(**node) for node in nodes]
    assert all(each.parent == tmp_path / "understudy" for each in directories)
    assert all(len(each.name.encode()) <= 255 for each in directories)
    assert directory(node_id="a", data_dir=tmp_path / "own") == tmp_path / "own"


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        (NodeSettings, {"applications": Path("a.toml")}),
        (NodeSettings, {"checkpoints": ("/a", "/b")}),
        (ClusterNodeSettings, {"applications": Path("a.toml"), "redis": "redis://a"}),
        (ClusterNodeSettings, {"checkpoint_root": "/checkpoints", "redis": "redis://a"}),
    ],
)
def test_a_process_of_several_applications_has_no_checkpoint_of_its_own(
    settings: type[NodeSettings], given: dict[str, object]
) -> None:
    settings(**given).require_usable()  # type: ignore[arg-type]  # pydantic validates
    with pytest.raises(SettingsError, match="checkpoint is a setting of one application"):
        settings(checkpoint="/c", **given).require_usable()  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="checkpoint\n  Field required"):
        settings(**{name: value for name, value in given.items() if name == "redis"})  # type: ignore[arg-type]


def test_a_node_of_one_application_takes_no_setting_of_announced_ones() -> None:
    given: dict[str, Any] = {"redis": "redis://127.0.0.1", "forget_after_ms": 5_000}
    with pytest.raises(SettingsError, match="forget_after_ms is a setting of several applications"):
        ClusterNodeSettings(**given, checkpoint="/data/orders").require_usable()
    ClusterNodeSettings(**given, checkpoint_root="/data").require_usable()
