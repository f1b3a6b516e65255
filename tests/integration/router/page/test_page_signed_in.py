"""The page of a router that asks for keys, in a real browser over TLS: signed in, looked at, drained, signed out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import ClusterNode, ClusterRouter, cluster_node, cluster_router
from tests.support.matrix import in_full
from tests.support.page.browser import CHROMIUM, NO_CHROMIUM, chromium
from tests.support.services.certificates import Signer
from tests.support.services.guarded import Keys
from tests.support.spark.queries import wait_until

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)


@dataclass(frozen=True, slots=True)
class Guarded:
    """A router at `url` that asks for keys, and the node behind it."""

    url: str
    keys: Keys
    node: ClusterNode
    router: ClusterRouter


@pytest.fixture(scope="module", params=["TLS", pytest.param("plain", marks=pytest.mark.full)])
def guarded(
    request: pytest.FixtureRequest, module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    folder: Path = tmp_path_factory.mktemp("guarded")
    checkpoint = HandmadeCheckpoint(folder / "counts").create().add(1, 2)
    keys, secret = Keys(folder / "credentials.toml"), folder / "secret"
    for role in ("reader", "monitor"):
        keys.add(role, role)
    keys.add("ann", "reader", "admin", "monitor")
    secret.write_text("c" * 40)
    common: dict[str, Any] = {"credentials_file": keys.path, "cluster_secret_file": secret}
    tls: dict[str, Any] = Signer(folder).issue("page").settings() if request.param == "TLS" else {}
    module_redis.flush()
    with (
        cluster_router(module_redis.url, **common, **tls) as router,
        cluster_node(checkpoint.path, folder / "n1", module_redis.url, node_id="n1", **common) as node,
    ):
        wait_until(lambda: not router.router.not_ready(), what="the router knows the node", limit_s=60)
        yield Guarded(f"{'https' if tls else 'http'}://localhost:{router.port}", keys, node, router)


@pytest.fixture(scope="module")
def browser(guarded: Guarded) -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(params=in_full((True, False), if_in=("without scripts",), names=("with scripts", "without scripts")))
def has_scripts(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def page(browser: Browser, *, has_scripts: bool) -> Iterator[Page]:
    context = browser.new_context(ignore_https_errors=True, java_script_enabled=has_scripts)
    try:
        yield context.new_page()
    finally:
        context.close()


def heard_state(guarded: Guarded) -> str:
    """What the router has last heard of the node."""
    return guarded.router.router.tables.nodes["n1"].heartbeat.state


def says_after_reload(page: Page, state: str) -> bool:
    """Whether the page says that the node is in a state: without scripts it is loaded again, and is a second old."""
    page.reload()
    return state in page.locator("#nodes tr", has_text="n1").inner_text()


def sign_in(page: Page, guarded: Guarded, key: str) -> None:
    page.goto(f"{guarded.url}/")
    expect(page).to_have_title("Understudy: sign in")
    page.get_by_label("Key").fill(key)
    page.get_by_role("button", name="Sign in").click()


def test_an_operator_signs_in_looks_and_signs_out(page: Page, guarded: Guarded) -> None:
    sign_in(page, guarded, guarded.keys["ann"])
    expect(page.locator("#nodes")).to_contain_text("n1")
    expect(page.locator("header")).to_contain_text("ann")
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_title("Understudy: sign in")
    page.goto(f"{guarded.url}/admin/")
    expect(page).to_have_title("Understudy: sign in")


@pytest.mark.full
def test_an_operator_drains_a_node_and_takes_that_back(page: Page, guarded: Guarded, *, has_scripts: bool) -> None:
    sign_in(page, guarded, guarded.keys["ann"])
    row = page.locator("#nodes tr", has_text="n1")
    if has_scripts:
        row.get_by_role("button", name="Drain").click()
        page.locator("#drain-do").click()
        expect(row).to_contain_text("draining")
        row.get_by_role("button", name="Undo").click()
        expect(row).to_contain_text("serving")
        return
    for button, state in (("Drain", "draining"), ("Undo drain", "serving")):
        row.get_by_role("link", name="Drain n1").click()
        expect(page.locator("main")).to_contain_text("last replica of")
        page.get_by_role("button", name=button, exact=True).click()
        expect(page).to_have_url(re.compile("/admin/#nodes-title$"))
        wait_until(lambda state=state: heard_state(guarded) == state, what=state, limit_s=60)  # type: ignore[misc]
        wait_until(lambda state=state: says_after_reload(page, state), what=state, limit_s=60)  # type: ignore[misc]


def test_the_form_of_another_site_signs_nobody_in_or_out(page: Page, guarded: Guarded) -> None:
    sign_in(page, guarded, guarded.keys["ann"])
    expect(page.locator("header")).to_contain_text("ann")
    for path, field in (("login", f'<input name="key" value="{guarded.keys["monitor"]}">'), ("logout", "")):
        form = f'<form method="post" action="{guarded.url}/admin/{path}">{field}<button>Go</button></form>'
        page.goto(f"data:text/html,{quote(form)}")
        page.get_by_role("button", name="Go").click()
        expect(page.get_by_role("alert")).to_contain_text("Open the page itself")
        page.goto(f"{guarded.url}/admin/")
        expect(page.locator("header")).to_contain_text("ann")
