"""`evenflow certs`, as a developer types it."""

import os
import shlex
import stat

import pytest
from click.testing import CliRunner

from gateway.cli import main


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("EVENFLOW_")]:
        monkeypatch.delenv(name)


def run(*arguments, status=0):
    result = CliRunner().invoke(main, ["certs", "dev", *arguments], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def test_it_says_where_everything_is_and_how_it_is_trusted(tmp_path):
    said = run().stdout
    assert said.startswith("Made:\n")
    assert "for localhost, 127.0.0.1, ::1)" in said
    assert "\n  evenflow up --tls\n" in said
    assert "curl --cacert .evenflow/tls/authority/ca.pem https://localhost:8080/" in said
    assert "SSL_CERT_FILE=.evenflow/tls/authority/ca.pem" in said
    assert stat.S_IMODE((tmp_path / ".evenflow").stat().st_mode) == 0o700
    assert (tmp_path / ".evenflow" / "tls" / "server" / "key.pem").read_text() not in said
    again = run().stdout
    assert again == said.replace("Made:", "All there, and good:")
    assert ", llm.example)" in run("--name", "llm.example").stdout


def test_a_directory_of_ones_own_is_served_by_its_settings(tmp_path):
    said = run("--dir", "my certificates").stdout
    (serve,) = [line for line in said.splitlines() if line.endswith("evenflow up")]
    variables = dict(word.split("=", 1) for word in shlex.split(serve)[:2])
    assert {(tmp_path / file).is_file() for file in variables.values()} == {True}
    assert set(variables) == {"EVENFLOW_TLS__CERTIFICATE", "EVENFLOW_TLS__KEY"}


def test_mistakes_are_one_line_and_a_status(tmp_path):
    (tmp_path / "file").touch()
    assert run("--dir", "file", status=1).stderr == "evenflow: file: a file stands where a directory is needed\n"
    wrong = "evenflow: 'a b' is neither a host name (in ASCII) nor an address\n"
    assert run("--name", "a b", status=1).stderr == wrong
    run()
    (tmp_path / ".evenflow" / "tls" / "authority" / "ca.pem").write_text("nonsense")
    told = ".evenflow/tls/authority: ca.pem and key.pem cannot be read as certificate and key"
    assert run(status=1).stderr == f"evenflow: {told}\n"
