"""Certificates for development: what is made, kept, renewed and refused; and that a strict client believes them."""

import asyncio
import os
import shutil
import ssl
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from gateway.tls import make_context
from gateway.up.authority import CA_DAYS, RENEW_DAYS, open_authority
from gateway.up.command import Parts, UpOptions, _Up
from gateway.up.dev_certificates import DAYS, keep_dev_certificates
from gateway.up.files import exclusive
from gateway.up.terminal import Terminal
from shared.errors import StartError
from shared.settings import GatewaySettings, Settings, TlsSettings

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def home(tmp_path):
    return tmp_path / "tls"


def keep(home, *names, days=0):
    return keep_dev_certificates(home, names, NOW + timedelta(days=days))


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def believed(kept, name):
    """Shake hands in memory, as the strictest of common clients (Python 3.13's defaults) would, now."""
    server = make_context(TlsSettings(certificate=str(kept.certificate), key=str(kept.key)))
    trust = ssl.create_default_context(cafile=str(kept.authority))
    trust.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trust.wrap_bio(to_client, to_server, server_hostname=name)
    ends = [client, server.wrap_bio(to_server, to_client, server_side=True)]
    done = set()
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
    return len(done) == 2


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "llm.example", "any.dev.example", "10.0.0.7"])
def test_a_strict_client_believes_every_name_and_no_other(home, name):
    kept = keep_dev_certificates(home, ["LLM.example", "*.dev.example", "10.0.0.7"])
    assert believed(kept, name)
    assert not believed(kept, "other.example")


def test_secrets_are_private_and_the_directory_that_was_there_keeps_its_mode(home):
    home.mkdir(mode=0o755)
    home.chmod(0o755)
    kept = keep(home)
    assert mode(home) == 0o755
    assert {mode(folder) for folder in (kept.authority.parent, kept.certificate.parent)} == {0o700}
    assert {mode(key) for key in (kept.key, kept.authority.with_name("key.pem"))} == {0o600}
    kept.key.chmod(0o644)
    keep(home)
    assert mode(kept.key) == 0o600


def test_again_changes_nothing_until_the_end_is_near_and_then_only_the_certificate(home):
    first = keep(home, "llm.example")
    files = {path: path.read_bytes() for path in home.rglob("*.pem")}
    assert first.made
    again = keep(home, days=DAYS - RENEW_DAYS - 1)
    assert not again.made
    assert (again.names, again.ends) == (first.names, first.ends)
    assert {path: path.read_bytes() for path in home.rglob("*.pem")} == files
    late = keep(home, days=DAYS - RENEW_DAYS)
    assert late.made
    assert late.names == first.names, "a name that was given once is forgotten"
    assert late.ends - first.ends == timedelta(days=DAYS - RENEW_DAYS)
    assert late.authority.read_bytes() == files[late.authority]


def test_a_missing_name_makes_another_certificate_and_no_name_is_lost(home):
    first, authority = keep(home, "a.example"), (home / "authority" / "ca.pem").read_bytes()
    second = keep(home, "b.example", "2001:DB8:0::1")
    assert second.made
    assert set(second.names) == {*first.names, "b.example", "2001:db8::1"}
    assert not keep(home, "a.example", "127.0.0.1").made
    assert second.authority.read_bytes() == authority
    (home / "server" / "certificate.pem").unlink()
    assert set(keep(home).names) == {"localhost", "127.0.0.1", "::1"}


def test_a_broken_certificate_is_made_anew(home):
    keep(home)
    for broken in ("", "nonsense", (home / "authority" / "ca.pem").read_text()):
        (home / "server" / "certificate.pem").write_text(broken)
        assert keep(home).made
    assert not keep(home).made


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "a b", "a..b", ".a", "-a.example", "a/b", "a:1", "https://a.example", "a.*.example", "a\n"),
        *("x" * 64, "a." * 127 + "bc", "b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher.example"),
        *("10.0.0", "1.2.3.4.5", "999.0.0.1", "[::1]", "fe80::1%eth0"),
    ],
)
def test_what_is_no_name_is_refused_before_anything_is_made(home, name):
    with pytest.raises(StartError, match="neither a host name"):
        keep(home, name)
    assert not home.exists()


def spoil_text(home):
    (home / "authority" / "ca.pem").write_text("nonsense")


def spoil_bytes(home):
    (home / "authority" / "ca.pem").write_bytes(b"\x30\x82\xff")


def spoil_pair(home):
    open_authority(home / "other", NOW)
    (home / "other" / "key.pem").replace(home / "authority" / "key.pem")


def lose_key(home):
    (home / "authority" / "key.pem").unlink()


def no_authority(home):
    """A server's certificate with its own key, where the authority's should be."""
    for name, file in (("ca.pem", "certificate.pem"), ("key.pem", "key.pem")):
        (home / "server" / file).replace(home / "authority" / name)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (spoil_text, "cannot be read as certificate and key"),
        (spoil_bytes, r"ca\.pem: is no text file"),
        (spoil_pair, "do not belong together"),
        (lose_key, "cannot vouch for anybody"),
        (no_authority, "is no certificate of an authority"),
    ],
)
def test_a_broken_authority_is_said_and_never_replaced(home, spoil, told):
    keep(home)
    spoil(home)
    before = {path: path.read_bytes() for path in home.rglob("*.pem")}
    with pytest.raises(StartError, match=told):
        keep(home)
    assert {path: path.read_bytes() for path in home.rglob("*.pem")} == before


def test_an_authority_that_has_ended_is_said(home):
    keep(home, days=-CA_DAYS)
    with pytest.raises(StartError, match="ended on 2030-01-01"):
        keep(home)


def test_a_file_in_the_way_is_said(tmp_path):
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StartError, match="a file stands where a directory is needed"):
            keep(directory)


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_one_clear_line(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "tls").mkdir()
    (tmp_path / "tls").chmod(0o555)
    other = ["setpriv", "--reuid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    command = [*other, sys.executable, "-m", "gateway.cli", "certs", "dev", "--dir", "tls"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert done.stderr.startswith("evenflow: tls/authority: permission denied"), done.stderr


async def test_two_at_once_wait_for_each_other(home):
    keep(home)
    (home / "server" / "certificate.pem").unlink()
    with exclusive(home / "authority" / "lock"):
        keeping = asyncio.create_task(asyncio.to_thread(keep, home))
        done, _ = await asyncio.wait({keeping}, timeout=0.1)
        assert not done
    assert (await keeping).made


def up_with_tls(settings, out):
    return _Up(settings, UpOptions(tls=True), Parts(), Terminal(out), 0.0)._tls(settings)


def test_up_takes_a_certificate_of_ones_own_over_making_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    own = Settings(tls=TlsSettings(certificate="own.pem", key="own-key.pem"))
    assert up_with_tls(own, sys.stdout) == own
    assert "own.pem is set and served; no development certificate is made" in capsys.readouterr().out
    assert not (tmp_path / ".evenflow" / "tls").exists()


def test_up_makes_none_in_profile_prod(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StartError, match=r"in profile prod set tls\.certificate and tls\.key"):
        up_with_tls(Settings(profile="prod"), sys.stdout)


@pytest.mark.parametrize(("host", "extra"), [("10.0.0.7", {"10.0.0.7"}), ("0.0.0.0", set()), ("::", set())])
def test_the_address_that_up_listens_on_is_among_the_names(tmp_path, monkeypatch, host, extra):
    monkeypatch.chdir(tmp_path)
    settings = up_with_tls(Settings(gateway=GatewaySettings(host=host)), sys.stdout)
    made = x509.load_pem_x509_certificate((tmp_path / settings.tls.certificate).read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    assert addresses == {"127.0.0.1", "::1", *extra}
