"""The pictures in docs/screenshots/: the dashboard of a real service under a made-up load.

    python -m infra.docs.screenshots [--minutes 15]

Needs Chromium. It takes as long as the lines in the pictures are.
"""

import argparse
import asyncio
import contextlib
import math
import random
import sys
import tempfile
import time
from pathlib import Path

import httpx
from playwright.sync_api import Page, sync_playwright

from gateway.core.accounts import Limits
from gateway.store.rows import Actor
from gateway.store.store import Store
from shared.settings import Settings, StoreSettings
from tests.e2e.stack import ROOT, Stack, running

DIRECTORY = ROOT / "docs" / "screenshots"
BY = Actor("local", name="screenshots")
SETTINGS = {
    "WORKERS__0__ENGINE": "null",
    "WORKERS__0__SLOTS": "8",
    "WORKERS__0__NULL_PACED": "true",
    "WORKERS__0__NULL_RATE": "20",
    "WORKERS__0__NULL_TOKENS": "2000",
}
TENANTS = {
    "acme": (Limits(requests=120, tokens=3000, streams=6, daily=50_000, monthly=1_000_000), 3),
    "globex": (Limits(tokens=20_000, daily=20_000), 2),
    "initech": (Limits(tokens=600, streams=2), 1),
    "umbrella": (Limits(monthly=2_000_000), 1),
    "hooli": (Limits(), 0),
}
LOOKS = {
    "light": {"viewport": {"width": 1280, "height": 800}},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}},
}
SHOTS = (("overview", "/", LOOKS), ("tenants", "/tenants", ("light",)), ("tenant", "/tenants/acme", ("light", "dark")))


async def prepare(stack: Stack) -> dict[str, str]:
    """Make the tenants; returns a key of each."""
    state = stack.directory / ".evenflow"
    url = f"sqlite+aiosqlite:///{state}/evenflow.db"
    store = await Store.open(Settings(store=StoreSettings(url=url, pepper_file=str(state / "pepper"))))
    keys = {}
    try:
        for name, (limits, _) in TENANTS.items():
            await store.tenants.create(name, zone="Europe/Berlin", limits=limits, by=BY)
            for key in ("production", "laptop"):
                _, keys[name] = await store.keys.create(name, key, by=BY)
    finally:
        await store.close()
    return keys


async def load(stack: Stack, keys: dict[str, str], seconds: float) -> None:
    """Clients that come and go, in waves."""
    end = time.monotonic() + seconds
    async with httpx.AsyncClient(base_url=stack.url, timeout=120, trust_env=False) as client:

        async def one(key: str, phase: float) -> None:
            chance = random.Random(phase)
            while time.monotonic() < end:
                wave = 1.2 + math.sin(time.monotonic() / 90 + phase)
                words = " ".join("river" for _ in range(chance.randrange(5, 60)))
                body = {"model": "null", "messages": [{"role": "user", "content": words}], "stream": True}
                body["max_tokens"] = chance.randrange(40, 240)
                async with client.stream(
                    "POST", "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}
                ) as answer:
                    async for _ in answer.aiter_bytes():
                        if time.monotonic() > end:
                            return
                await asyncio.sleep(chance.expovariate(1.0) * 5 / wave)

        clients = [
            (keys[name], at + number)
            for at, (name, (_, count)) in enumerate(TENANTS.items())
            for number in range(count)
        ]
        await asyncio.gather(*(one(key, phase) for key, phase in clients))


def shoot(stack: Stack) -> None:
    """All pictures."""
    DIRECTORY.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        state = None
        for look, options in LOOKS.items():
            context = browser.new_context(**options, storage_state=state, timezone_id="Europe/Berlin")
            page = context.new_page()
            if state is None:
                log_in(page, stack)
                state = context.storage_state()
            for name, path, looks in SHOTS:
                if look in looks:
                    page.goto(stack.admin + path)
                    page.wait_for_selector("#live-state.on")
                    page.wait_for_selector("canvas") if name != "tenants" else None
                    page.screenshot(path=DIRECTORY / f"{name}-{look}.png")
            context.close()
        browser.close()


def log_in(page: Page, stack: Stack) -> None:
    """As the admin that `evenflow up` made."""
    page.goto(f"{stack.admin}/login")
    page.fill("[name=name]", "admin")
    page.fill("[name=password]", (stack.directory / ".evenflow" / "admin.password").read_text().strip())
    page.click("button.primary")
    page.wait_for_selector("h1")


def main() -> int:
    """Serve, load, and take the pictures just before the load ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as directory, running(Path(directory), **SETTINGS) as stack:
        keys = asyncio.run(prepare(stack))
        time.sleep(2)  # until the gateway knows them

        async def all_of_it() -> None:
            loading = asyncio.create_task(load(stack, keys, minutes * 60 + 60))
            await asyncio.sleep(minutes * 60)
            await asyncio.to_thread(shoot, stack)
            loading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await loading

        asyncio.run(all_of_it())
    for picture in sorted(DIRECTORY.iterdir()):
        print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
