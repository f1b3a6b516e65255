"""Every runbook that the router or an alert names opens from the router, offline and under the policy of the page."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from urllib.parse import urljoin, urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape
from ruamel.yaml import YAML
from tests.support.page.fake_router import fake_app
from tests.support.page.markup import Markup
from tests.support.repository import ROOT

from understudy_router.admin.indicators import INDICATORS
from understudy_shared.page.files import INDEX, _page, runbooks
from understudy_shared.page.views import runbook_link

ALERTS = YAML(typ="safe").load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
LINKS = sorted(rule["annotations"]["runbook_url"] for group in ALERTS["groups"] for rule in group["rules"])


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=fake_app())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as made:
        yield made


async def test_every_runbook_of_an_indicator_or_an_alert_opens(client: httpx.AsyncClient) -> None:
    assert len(LINKS) > 10
    for address in {*LINKS, *(runbook_link(f"docs/runbooks/{name}.md").href for name in INDICATORS)}:
        reply = await client.get(urljoin("/admin/", address.partition("#")[0]))
        page = ROOT / f"docs/runbooks/{urlsplit(address).path.rpartition('/')[2]}.md"
        title = escape(page.read_text().splitlines()[0].removeprefix("# ").replace("`", ""))
        assert (reply.status_code, reply.headers["content-type"]) == (200, "text/html; charset=utf-8"), address
        assert f"<title>{title} · runbook</title>" in reply.text
        assert "trusted-types 'none'" in reply.headers["content-security-policy"]


async def test_every_link_of_a_runbook_leads_to_something_in_the_router(client: httpx.AsyncClient) -> None:
    for name in runbooks():
        page = Markup((await client.get(f"/admin/runbooks/{'' if name == INDEX else name}")).text)
        assert not page.inline, name
        for link in page.links:
            assert not link.startswith("/"), (name, link)  # a proxy may publish the router under a prefix
            if not link.startswith("#"):
                path, _, fragment = urljoin("/admin/runbooks/", link).partition("#")
                reply = await client.get(path)
                assert reply.status_code == 200, (name, link)
                assert not fragment or f'id="{fragment}"' in reply.text, (name, link)


@pytest.mark.parametrize("name", ["nothing", "reads.md", "../operations", "%2e%2e", "bus/reads"])
async def test_nothing_but_a_runbook_is_served(client: httpx.AsyncClient, name: str) -> None:
    reply = await client.get(f"/admin/runbooks/{name}")
    assert reply.status_code in {400, 404}


@given(st.text("[](){}<>!#|*`_-:/.\"'\n aé&;", max_size=200))
def test_no_text_becomes_a_script_a_style_or_a_link_elsewhere(text: str) -> None:
    page = Markup(_page(f"# Title\n\n{text}", ["reads"]).html)
    assert "script" not in page.tags
    assert page.attributes <= {"href", "src", "alt", "title", "start", "class", "id"}
    assert all(re.fullmatch(r"reads(#.*)?", link) for link in page.links)
