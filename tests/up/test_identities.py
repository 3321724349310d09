"""The folders of a bus: what is made, kept, renewed, handed out and taken away."""

import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from gateway.up import identities
from gateway.up.authority import LEAF_DAYS, RENEW_DAYS, open_authority
from gateway.up.files import exclusive
from gateway.up.nats_config import SERVER
from shared.errors import SettingsError, StartError
from shared.identity import find_identity

NOW = datetime(2030, 1, 1, tzinfo=UTC)
WANTED = [("gateway", "g1"), ("worker", "w1")]


@pytest.fixture
def home(tmp_path):
    return tmp_path / "nats"


def keep(home, days=0, hosts=("127.0.0.1", "bus.example")):
    return identities.keep(home, WANTED, hosts, NOW + timedelta(days=days))


def read(file):
    return x509.load_pem_x509_certificate(file.read_bytes())


def test_certificates_are_renewed_before_they_end_and_keys_of_identities_stay(home):
    folders = keep(home)
    certificates = [folders / "worker-w1" / "certificate.pem", home / "server" / "certificate.pem"]
    seed, first = (folders / "worker-w1" / "nkey.seed").read_bytes(), [read(file) for file in certificates]
    keep(home, days=LEAF_DAYS - RENEW_DAYS - 1)
    assert [read(file) for file in certificates] == first
    keep(home, days=LEAF_DAYS - RENEW_DAYS)
    again = [read(file) for file in certificates]
    for before, after in zip(first, again, strict=True):
        assert after.not_valid_after_utc - before.not_valid_after_utc >= timedelta(days=LEAF_DAYS - RENEW_DAYS)
        after.verify_directly_issued_by(read(home / "authority" / "ca.pem"))
    assert (folders / "worker-w1" / "nkey.seed").read_bytes() == seed


def test_other_names_of_the_server_make_another_certificate_of_the_same_authority(home):
    keep(home)
    authority, first = (home / "authority" / "ca.pem").read_bytes(), read(home / "server" / "certificate.pem")
    keep(home, hosts=("10.0.0.7", "bus.example"))
    again = read(home / "server" / "certificate.pem")
    names = again.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(name.value) for name in names} == {"10.0.0.7", "bus.example"}
    assert again != first
    assert (home / "authority" / "ca.pem").read_bytes() == authority


def test_a_new_authority_makes_everything_else_new(home):
    folders = keep(home)
    old = read(home / "authority" / "ca.pem")
    for file in (home / "authority").iterdir():
        file.unlink()
    keep(home)
    new = read(home / "authority" / "ca.pem")
    for certificate in home.glob("*/certificate.pem"), folders.glob("*/certificate.pem"):
        for file in certificate:
            read(file).verify_directly_issued_by(new)
    assert (folders / "worker-w1" / "ca.pem").read_bytes() == (home / "authority" / "ca.pem").read_bytes()
    assert new != old


@pytest.mark.parametrize(("lost", "told"), [("key.pem", "is missing"), ("both", None), ("mixed", "belong together")])
def test_a_damaged_authority_is_said_and_not_replaced(tmp_path, lost, told):
    directory = tmp_path / "authority"
    pem = open_authority(directory, NOW).pem
    if lost == "mixed":
        open_authority(tmp_path / "other", NOW)
        (tmp_path / "other" / "key.pem").replace(directory / "key.pem")
    else:
        (directory / "key.pem").unlink()
        (directory / "ca.pem").unlink() if lost == "both" else None
    if told is None:
        assert open_authority(directory, NOW).pem != pem
        return
    with pytest.raises(StartError, match=told):
        open_authority(directory, NOW)


def test_a_certificate_lost_between_two_writes_is_made_from_the_key_that_is_there(tmp_path):
    open_authority(tmp_path, NOW)
    key = (tmp_path / "key.pem").read_bytes()
    (tmp_path / "ca.pem").unlink()
    open_authority(tmp_path, NOW)
    assert (tmp_path / "key.pem").read_bytes() == key


def test_added_and_removed_is_in_the_servers_list_and_out_of_it(home):
    keep(home)
    folder = identities.add(home, "worker", "far-away")
    public = (folder / "nkey.pub").read_text().strip()
    assert public in (home / "identities.conf").read_text()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert find_identity(str(folder.parent), "worker", "far-away").folder == folder
    keep(home)  # the next `up` knows nothing of it, and leaves it
    assert public in (home / "identities.conf").read_text()
    identities.remove(home, "far-away")
    assert public not in (home / "identities.conf").read_text()
    assert not folder.exists()
    assert identities.add(home, "worker", "far-away") == folder
    assert (folder / "nkey.pub").read_text().strip() != public


def test_handed_out_secrets_may_leave_and_do_not_come_back(home):
    folder = keep(home) / "worker-w1"
    public = (folder / "nkey.pub").read_text().strip()
    for secret in ("nkey.seed", "key.pem"):
        (folder / secret).unlink()
    keep(home)
    assert sorted(file.name for file in folder.iterdir()) == ["ca.pem", "certificate.pem", "nkey.pub"]
    assert public in (home / "identities.conf").read_text()
    with pytest.raises(SettingsError, match=r"lacks nkey.seed, key.pem; `evenflow nats add-worker w1`"):
        find_identity(str(folder.parent), "worker", "w1")


@pytest.mark.parametrize(
    ("name", "told"),
    [("w1", "is there already"), ("g1", "name of a gateway"), ("provision", "name of a provision")]
    + [(name, "is no name") for name in ("", "W1", "a.b", "*", "../x", "-x", "a" * 64, "w1\n")],
)
def test_a_name_that_cannot_be_is_refused_and_changes_nothing(home, name, told):
    keep(home)
    before = {file: file.read_bytes() for file in home.rglob("*") if file.is_file()}
    with pytest.raises(StartError, match=told):
        identities.add(home, "worker", name)
    assert {file: file.read_bytes() for file in home.rglob("*") if file.is_file()} == before


def test_nothing_is_added_where_there_is_no_bus(home):
    with pytest.raises(StartError, match="holds no identities yet"):
        identities.add(home, "worker", "w1")
    with pytest.raises(StartError, match="no gateway or worker 'w1'"):
        identities.remove(home, "w1")


def test_provision_cannot_be_removed(home):
    keep(home)
    with pytest.raises(StartError, match="no gateway or worker 'provision'"):
        identities.remove(home, "provision")


def test_an_operators_server_configuration_is_kept(home):
    identities.init(home, WANTED, ["bus.example"], 4333)
    assert 'listen: "0.0.0.0:4333"' in (home / SERVER).read_text()
    (home / SERVER).write_text("# mine\n")
    identities.init(home, WANTED, ["bus.example"], 4222)
    assert (home / SERVER).read_text() == "# mine\n"


async def test_two_at_once_wait_for_each_other(home):
    import asyncio

    keep(home)
    with exclusive(home / "identities.lock"):
        adding = asyncio.create_task(asyncio.to_thread(identities.add, home, "worker", "w2"))
        done, _ = await asyncio.wait({adding}, timeout=0.1)
        assert not done
    assert (await adding).name == "worker-w2"


def test_without_the_setting_there_is_no_identity_and_a_missing_folder_is_named(tmp_path):
    assert find_identity("", "worker", "w1") is None
    with pytest.raises(SettingsError, match="worker-w1 is missing"):
        find_identity(str(tmp_path), "worker", "w1")


def test_a_file_that_is_no_certificate_is_named(home):
    folder = keep(home) / "worker-w1"
    (folder / "certificate.pem").write_text("nonsense")
    with pytest.raises(SettingsError, match=r"nats.identities: cannot use .*worker-w1"):
        find_identity(str(folder.parent), "worker", "w1").context()
    (folder / "nkey.seed").write_text("SUNONSENSE")
    with pytest.raises(StartError, match=r"nkey.seed holds no NKey"):
        keep(home)
