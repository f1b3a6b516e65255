"""A router that a proxy publishes under a prefix: the page in a real browser, the session, and both clients.

nginx and HAProxy run the configurations of docs/how-to/load-balancers.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, ConsoleMessage, Page, Response, expect
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade_orders import HandmadeOrders
from tests.support.clients.asking import asking
from tests.support.cluster.in_process import cluster_node, cluster_router
from tests.support.cluster.served_node import Served
from tests.support.matrix import in_full
from tests.support.page.browser import CHROMIUM, NO_CHROMIUM, Shown, chromium
from tests.support.page.explored import choose_store, do, expect_said
from tests.support.services.guarded import Keys
from tests.support.services.proxies import documented, haproxy, nginx
from tests.support.spark.queries import wait_until

from understudy.commands.group import cli

PREFIX = "/understudy"


class Way(NamedTuple):
    """A proxy, the block of the page that configures it, and whether it passes the prefix on."""

    proxy: Any
    language: str
    words: str
    keeps: bool


WAYS = {
    "nginx keeps": Way(nginx, "nginx", "location = /understudy", True),
    "nginx strips": Way(nginx, "nginx", "proxy_pass http://routers/;", False),
    "HAProxy strips": Way(haproxy, "text", "replace-path", False),
}


@dataclass(frozen=True, slots=True)
class Published:
    """A router at `url`, which a proxy publishes."""

    url: str
    keys: Keys
    keeps: bool


@pytest.fixture(scope="module")
def everything(module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Published]]:
    folder: Path = tmp_path_factory.mktemp("published")
    orders = HandmadeOrders(folder / "orders").create().add(1, 2, 3)
    keys, secret = Keys(folder / "credentials.toml"), folder / "secret"
    keys.role("all", '{stores = ["op0"], actions = ["scan", "point"]}')
    keys.add("ann", "all", "monitor")
    secret.write_text("c" * 40)
    common: dict[str, Any] = {"credentials_file": keys.path, "cluster_secret_file": secret}
    module_redis.flush()
    with ExitStack() as started:
        plain = started.enter_context(cluster_router(module_redis.url, **common))
        prefixed = started.enter_context(cluster_router(module_redis.url, root_path=PREFIX, **common))
        started.enter_context(cluster_node(orders.path, folder / "n1", module_redis.url, node_id="n1", **common))
        for each in (plain, prefixed):
            wait_until(lambda each=each: not each.router.not_ready(), what="the router knows the node", limit_s=60)  # type: ignore[misc]
        found = {}
        for name, (proxy, language, words, keeps) in WAYS.items():
            router, place = prefixed if keeps else plain, folder / name.replace(" ", "-")
            port = started.enter_context(proxy(place, documented(language, words), router.port))
            wait_until(lambda port=port: Served(port).get(f"{PREFIX}/readyz").status == 200, what="the proxy asks it")  # type: ignore[misc]
            found[name] = Published(f"http://127.0.0.1:{port}{PREFIX}", keys, keeps)
        yield found


@pytest.fixture(params=in_full(WAYS, if_in=("nginx keeps", "HAProxy strips"), names=WAYS))
def published(request: pytest.FixtureRequest, everything: dict[str, Published]) -> Published:
    return everything[request.param]


@pytest.fixture(scope="module")
def browser(everything: dict[str, Published]) -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def shown(browser: Browser) -> Iterator[Shown]:
    """A page whose console, and whose answers, must have nothing to say at the end."""
    context = browser.new_context()
    found = Shown(context.new_page())
    page = found.page

    def hear(said: ConsoleMessage) -> None:
        if said.type in {"error", "warning"} and not said.text.startswith("Failed to load resource"):
            found.errors.append(said.text)

    def see(answer: Response) -> None:  # Chromium asks for the icon of a document that is no page at the root
        if answer.status >= 400 and not answer.url.endswith("/favicon.ico"):
            found.errors.append(f"{answer.status} {answer.url}")

    page.on("console", hear)
    page.on("response", see)
    page.on("pageerror", lambda error: found.errors.append(str(error)))
    yield found
    context.close()


def sign_in(page: Page, published: Published, at: str) -> None:
    page.goto(f"{published.url}{at}")
    page.get_by_label("Key").fill(published.keys["ann"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("header")).to_contain_text("ann")


def path_of(page: Page) -> str:
    return urlsplit(page.url).path


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_the_page_its_files_its_calls_and_its_session_work_below_the_prefix(shown: Shown, published: Published) -> None:
    page = shown.page
    sign_in(page, published, "")  # without a slash at the end: the address as people type it
    assert path_of(page) == f"{PREFIX}/admin/"
    (cookie,) = page.context.cookies()
    assert cookie["path"] == (f"{PREFIX}/" if published.keeps else "/")
    shown.errors.clear()  # the sign-in page was a 401
    page.reload()
    shown.wait_until_live()
    assert page.evaluate("getComputedStyle(document.querySelector('.top')).display") == "flex"
    page.locator("#ask select[name=store]").select_option("op0")
    for field, text in zip(page.locator("#ask input[data-field]").all(), ("a", "1"), strict=True):
        field.fill(text)
    page.locator("#ask").get_by_role("button", name="Get", exact=True).click()
    expect(page.locator("#answer")).to_contain_text("0 batches behind")
    commands = " ".join(page.locator("#answer .command code").all_inner_texts())
    assert f"{published.url}/v1/stores/op0/lookup" in commands
    assert f"--url {published.url}" in commands
    choose_store(page)
    do(page, "List keys")
    expect_said(page, "Keys 1 to 50")
    assert shown.errors == []
    page.get_by_role("link", name="all calls").click()
    assert path_of(page) == f"{PREFIX}/docs"
    page.get_by_role("link", name="openapi.json", exact=True).click()
    servers = json.loads(page.locator("pre").inner_text()).get("servers")
    assert servers == ([{"url": PREFIX}] if published.keeps else None)
    page.goto(f"{published.url}/admin/")
    page.get_by_role("link", name="metrics").click()
    assert path_of(page) == f"{PREFIX}/metrics"
    page.goto(f"{published.url}/admin/runbooks/")
    page.locator("main a", has_text=re.compile("reads", re.IGNORECASE)).first.click()
    expect(page.locator("main h1")).to_be_visible()
    assert path_of(page).startswith(f"{PREFIX}/admin/runbooks/")
    page.get_by_role("link", name="understudy", exact=True).click()
    shown.wait_until_live()
    assert shown.errors == []
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_title("Understudy: sign in")
    assert page.context.cookies() == []


def test_the_python_client_takes_the_url_with_the_prefix(published: Published) -> None:
    with asking("sync", f"{published.url}/", api_key=published.keys["ann"]) as client:
        found = client.ask(lambda made: made.store("op0").get("a", 1))
        assert found.found


def test_the_command_line_takes_the_url_with_the_prefix(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERSTUDY_API_KEY", published.keys["ann"])
    result = CliRunner().invoke(cli, ["stores", "--url", published.url, "--json"])
    assert result.exit_code == 0, result.output
    assert "op0" in result.output
