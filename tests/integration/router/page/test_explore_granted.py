"""Explore for readers with and without the grant, and of a router that leaves it out, in a real browser."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.support.cluster.in_process import ClusterRouter
from tests.support.page.browser import CHROMIUM, NO_CHROMIUM, chromium, shown
from tests.support.page.explored import address, choose_store, do, expect_said, explored
from tests.support.services.guarded import Keys

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)

GRANTS = {
    "all": '{stores = ["op0"], actions = ["scan", "point"]}',
    "of-b": '{stores = ["op0"], actions = ["scan", "point"], key_prefix = ["b"]}',
    "points": '{stores = ["op0"], actions = ["point"]}',
}


@dataclass(frozen=True, slots=True)
class Routers:
    """A router that asks for `keys`, each of which may monitor, too; and one that leaves Explore out."""

    guarded: ClusterRouter
    keys: Keys
    without: ClusterRouter


@pytest.fixture(scope="module")
def routers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routers]:
    folder: Path = tmp_path_factory.mktemp("guarded")
    keys, secret = Keys(folder / "credentials.toml"), folder / "secret"
    for name, grant in GRANTS.items():
        keys.role(name, grant)
        keys.add(name, name, "monitor")
    secret.write_text("c" * 40)
    with (
        explored(folder, credentials_file=keys.path, cluster_secret_file=secret) as guarded,
        explored(tmp_path_factory.mktemp("without"), router={"disable_explore": True}) as without,
    ):
        yield Routers(guarded, keys, without)


@pytest.fixture(scope="module")
def browser(routers: Routers) -> Iterator[Browser]:
    with chromium() as started:
        yield started


@contextmanager
def signed_in(browser: Browser, routers: Routers, name: str) -> Iterator[Page]:
    context = browser.new_context()
    page = context.new_page()
    page.goto(address(routers.guarded))
    page.get_by_label("Key").fill(routers.keys[name])
    page.get_by_role("button", name="Sign in").click()
    try:
        yield page
    finally:
        context.close()


def test_a_reader_lists_by_his_grant_and_copies_commands_without_his_key(browser: Browser, routers: Routers) -> None:
    with signed_in(browser, routers, "all") as page:
        choose_store(page)
        expect(page.locator("#explore-about")).to_have_text("about 130 keys")
        do(page, "List keys")
        expect_said(page, "Keys 1 to 50")
        page.locator("#explore-list summary").click()
        curl, python = page.locator("#explore-list .command code").all_inner_texts()
        assert '-H "Authorization: Bearer $UNDERSTUDY_API_KEY"' in curl
        key = routers.keys["all"]
        assert key not in curl + python
        environment = {**os.environ, "UNDERSTUDY_API_KEY": key}
        command = [sys.executable, "-c", python]
        printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
        assert printed.stdout.count("tenant") == 130


def test_a_reader_of_some_keys_sees_those_and_is_told_why_not_the_others(browser: Browser, routers: Routers) -> None:
    with signed_in(browser, routers, "of-b") as page:
        choose_store(page)
        do(page, "List keys")
        expect_said(page, "the credential does not cover this key")
        expect_said(page, "Ask for a key that begins as your grant says")
        page.locator('[data-prefix="tenant"]').fill("b")
        do(page, "List keys")
        expect_said(page, "Keys 1 to 10, the last")
        expect(page.locator("#explore-about")).to_be_empty()


@pytest.mark.full
def test_a_router_that_disables_it_shows_no_explore_and_the_rest_of_the_page(
    browser: Browser, routers: Routers
) -> None:
    with shown(browser, address(routers.without, explore="op0")) as live:
        expect(live.page.locator("#ask")).to_be_visible()
        expect(live.page.locator("#explore")).to_have_count(0)
        assert live.errors == []
