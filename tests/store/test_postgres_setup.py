"""What docs/operations.md says of setting PostgreSQL up: role and database, TLS, the way of a backup and back."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import trustme
from msgspec.structs import replace
from sqlalchemy import text

from gateway.core import audit
from gateway.store.rows import Actor
from gateway.store.store import Store
from shared.errors import StoreError
from tests.store.postgres import HOST, OWNER_PASSWORD, PASSWORD, ROLE, name_of
from tests.store.raw import rows

BY = Actor("local", name="test")
GUIDE = Path(__file__).parents[2] / "docs" / "operations.md"


@pytest.fixture
def settings(postgres_settings):
    return postgres_settings


def at(settings, url):
    return replace(settings, store=replace(settings.store, url=url))


def program(postgres, name, *arguments, **more):
    done = subprocess.run(
        [postgres.bin / name, "-h", HOST, "-p", str(postgres.port), "-U", "postgres", "-w", *arguments],
        env={**os.environ, "PGPASSWORD": OWNER_PASSWORD}, capture_output=True, timeout=60, check=False, **more,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_the_role_and_the_database_of_the_guide_are_all_it_needs(postgres, settings):
    [listing] = re.findall(r"```sql\n(CREATE ROLE.*?)```", GUIDE.read_text(), re.DOTALL)
    listing = listing.replace("evenflow", "of_the_guide").replace("CHANGE-ME", "secret")
    statements = [line for line in listing.splitlines() if line]
    assert len(statements) == 2
    for statement in statements:
        postgres.sql(statement)
    try:
        store = await Store.open(
            at(settings, f"postgresql+asyncpg://of_the_guide:secret@{HOST}:{postgres.port}/of_the_guide")
        )
        await store.tenants.create("acme", by=BY)
        await store.close()
    finally:
        postgres.sql("DROP DATABASE of_the_guide WITH (FORCE)")
        postgres.sql("DROP ROLE of_the_guide")


async def test_a_dump_comes_back_whole_with_its_keys_and_its_audit_log(store, settings, postgres):
    await store.tenants.create("acme", by=BY)
    key, _ = await store.keys.create("acme", "k", by=BY)
    dump = program(postgres, "pg_dump", "--format=custom", name_of(settings.store.url))
    with postgres.database(empty=True) as url:
        program(
            postgres, "pg_restore", f"--role={ROLE}", "--no-owner", "--exit-on-error", "-d", name_of(url), input=dump
        )
        restored = at(settings, url)
        again = await Store.open(restored)
        assert again.store_id == store.store_id
        assert await again.keys.all() == (key,)
        await again.keys.revoke("k", by=BY)
        with pytest.raises(StoreError, match="the audit log only grows"):
            async with again._database.write() as connection:
                await connection.execute(text("DELETE FROM audit"))
        names = ", ".join(audit.Entry.__struct_fields__)
        found = await rows(restored, f"SELECT {names}, previous, hash FROM audit ORDER BY sequence")
        chain = [audit.Sealed(audit.Entry(*row[:-2]), *row[-2:]) for row in found]
        assert len(chain) == 3
        assert audit.verify(audit.sealing_key(again.pepper), chain) is None
        await again.close()


@pytest.fixture
def authority(postgres, tmp_path):
    """The server speaks TLS too, with a certificate of this authority."""
    made = trustme.CA()
    certificate = made.issue_cert(HOST)
    data = postgres.directory / "data"
    (data / "server.crt").write_bytes(b"".join(pem.bytes() for pem in certificate.cert_chain_pems))
    (data / "server.key").write_bytes(certificate.private_key_pem.bytes())
    owner = data.stat()
    for name in ("server.crt", "server.key"):
        (data / name).chmod(0o600)
        os.chown(data / name, owner.st_uid, owner.st_gid)
    postgres.sql("ALTER SYSTEM SET ssl = on")
    postgres.sql("SELECT pg_reload_conf()")
    made.cert_pem.write_to_path(tmp_path / "ca.pem")
    yield tmp_path / "ca.pem"
    postgres.sql("ALTER SYSTEM RESET ssl")
    postgres.sql("SELECT pg_reload_conf()")


async def test_over_tls_with_a_server_that_is_who_it_says(authority, settings, tmp_path, monkeypatch):
    safe = at(settings, settings.store.url + "?ssl=verify-full")
    monkeypatch.setenv("PGSSLROOTCERT", str(authority))
    store = await Store.open(safe)
    async with store._database.read() as connection:
        encrypted = await connection.execute(text("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"))
        assert encrypted.scalar_one() is True
    await store.close()
    trustme.CA().cert_pem.write_to_path(tmp_path / "another.pem")
    monkeypatch.setenv("PGSSLROOTCERT", str(tmp_path / "another.pem"))
    with pytest.raises(StoreError, match="certificate verify failed"):
        await Store.open(safe)


async def test_the_password_may_lie_in_a_file_of_its_own(settings, postgres, tmp_path):
    file = tmp_path / "pgpass"
    file.touch(0o600)
    file.write_text(f"{HOST}:*:*:{ROLE}:{PASSWORD}\n")
    bare = f"postgresql+asyncpg://{ROLE}@{HOST}:{postgres.port}/{name_of(settings.store.url)}?passfile={file}"
    store = await Store.open(at(settings, bare))
    await store.tenants.create("acme", by=BY)
    await store.close()
    file.write_text(f"{HOST}:*:*:{ROLE}:wrong\n")
    with pytest.raises(StoreError, match="password authentication failed"):
        await Store.open(at(settings, bare))
