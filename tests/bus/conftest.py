"""Two real NATS servers with generated configurations."""

import pytest_asyncio

from tests.bus.probes import running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory):
    async with running(tmp_path_factory.mktemp("bus")) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def loosened(tmp_path_factory):
    """A second server, whose permissions the controls change."""
    async with running(tmp_path_factory.mktemp("loosened")) as server:
        yield server
