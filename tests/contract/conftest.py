"""Each engine is loaded once; its tests run one after the other."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.contract.subjects import Subject, create, spec_of


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    engine = create(request.param)
    await engine.load(spec_of(request.param), lambda _fraction, _what: None)
    yield Subject(request.param, engine)
    await asyncio.wait_for(engine.unload(), 20)
