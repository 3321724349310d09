"""What every room may use: databases."""

import os

import pytest

from tests.store.postgres import Cluster, programs


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server of this run's own (`tests/store/postgres.py`), started by the first test that takes it."""
    lane = os.environ.get("EVENFLOW_TEST_POSTGRES", "")
    if lane == "0":
        pytest.skip("EVENFLOW_TEST_POSTGRES=0")
    found = programs()
    if found is None:
        missing = "PostgreSQL is not installed (Debian: apt-get install --no-install-recommends postgresql)"
        (pytest.fail if lane == "1" else pytest.skip)(missing)
    cluster = Cluster(found)
    try:
        yield cluster.make()
    finally:
        cluster.remove()


@pytest.fixture
def sqlite_url(tmp_path):
    """`store.url` of an SQLite file that is not there yet, nor is its directory."""
    return f"sqlite+aiosqlite:///{tmp_path}/new/store.db"


@pytest.fixture
def postgres_url(postgres):
    """`store.url` of a PostgreSQL database of this test's own, with empty tables."""
    with postgres.database() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request):
    """`store.url` of a new store: whoever takes it runs twice, on SQLite and on PostgreSQL."""
    return request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request):
    """The same without tables, for tests of making them."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_url")
    else:
        with request.getfixturevalue("postgres").database(empty=True) as url:
            yield url
