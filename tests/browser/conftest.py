"""A real browser on a real stack. Without Chromium these tests are skipped and say so; in their own lane they fail."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.e2e.stack import Stack, running

WANTED = os.environ.get("EVENFLOW_TEST_BROWSER") == "1"
AXE = Path(__file__).with_name("axe.min.js")
PATIENCE_MS = 60_000
SERIOUS = {"serious", "critical"}


@pytest.fixture(scope="session")
def chromium() -> str:
    found = shutil.which("chromium")
    if found is None:
        why = "chromium is not installed: apt-get install -y --no-install-recommends chromium"
        pytest.fail(why) if WANTED else pytest.skip(why)
    return found


@pytest.fixture(scope="module")  # its event loop must not outlive these tests: others have their own
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # No sandbox: containers and root have none to give. It only sees our own pages.
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def stack(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One worker without a model that keeps a rhythm: 20 tokens a second for each of its streams."""
    settings = {"ENGINE": "null", "NULL_PACED": "true", "NULL_RATE": "20", "NULL_TOKENS": "2000"}
    with running(
        tmp_path_factory.mktemp("stack"), **{f"WORKERS__0__{name}": value for name, value in settings.items()}
    ) as started:
        yield started


class Desk:
    """A page of the dashboard, and what went wrong in it."""

    def __init__(self, page: Page, stack: Stack):
        self.page, self.stack = page, stack
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on(
            "console", lambda said: self.complaints.append(said.text) if said.type in {"error", "warning"} else None
        )

    def go(self, path: str) -> None:
        self.page.goto(self.stack.admin + path)

    def login(self) -> None:
        self.go("/login")
        self.page.fill("[name=name]", "admin")
        self.page.fill("[name=password]", (self.stack.directory / ".evenflow/admin.password").read_text().strip())
        self.page.click("button.primary")
        self.page.wait_for_selector("h1:text-is('Overview')")

    def live(self) -> None:
        """Until figures arrive."""
        self.page.wait_for_selector("#live-state.on")

    def reach(self, what: str):
        """Ask until the expression is true, and return it. (Playwright's own way would need `eval` in the page.)"""
        end = time.monotonic() + PATIENCE_MS / 1000
        while not (found := self.page.evaluate(what)):
            assert time.monotonic() < end, what
            time.sleep(0.05)
        return found

    def faults(self) -> list[str]:
        """What axe-core finds that shuts somebody out."""
        # From the driver's side: the pages' own policy allows no script but theirs.
        self.page.evaluate(AXE.read_text() + "; null")
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {one['help']}: {[node['html'][:150] for node in one['nodes'][:3]]}"
            for one in found["violations"]
            if one["impact"] in SERIOUS
        ]


@pytest.fixture(scope="module")
def signed_in(browser: Browser, stack: Stack):
    """Cookies of one login, for all contexts."""
    context = browser.new_context()
    Desk(context.new_page(), stack).login()
    kept = context.storage_state()
    context.close()
    return kept


@pytest.fixture
def open_desk(browser: Browser, stack: Stack, signed_in):
    """Opens pages in contexts of their own; whatever they complain of fails the test."""
    opened = []

    def make(*, anonymous: bool = False, **options) -> Desk:
        state = {} if anonymous else {"storage_state": signed_in}
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **state, **options})
        opened.append((context, desk := Desk(context.new_page(), stack)))
        return desk

    yield make
    for context, _ in opened:
        context.close()
    assert [complaint for _, desk in opened for complaint in desk.complaints] == []


@pytest.fixture
def desk(open_desk) -> Desk:
    return open_desk()
