"""The lock files hold everything that an installation needs, build tools included, each with its hashes."""

import re
import tomllib

import pytest

from tests.docs.markdown import ROOT

LOCKS = ("requirements.lock", "requirements-dev.lock")


def entries(lock):
    """What the lock names, as `name -> (the line, its hashes)`."""
    text = (ROOT / lock).read_text(encoding="utf-8").replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if match := re.match(r"([a-z0-9-]+)==", line):
            found[match[1]] = line.partition(" --hash")[0].strip(), re.findall(r"--hash=sha256:[0-9a-f]{64}", line)
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_what_builds_is_locked_without_a_condition_and_all_has_hashes(lock):
    locked = entries(lock)
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    for tool in groups["build"]:
        name = re.match(r"[a-z0-9-]+", tool)[0]
        assert ";" not in locked[name][0], f"{name} is installed everywhere"
    assert "setuptools" in locked
    assert all(hashes for _, hashes in locked.values())


def test_the_installation_builds_nothing_in_isolation():
    script = (ROOT / "infra" / "install.sh").read_text(encoding="utf-8").replace("\\\n", " ")
    for call in re.findall(r'^"\$\{pip\[@\]\}".*$', script, re.MULTILINE):
        assert "--no-build-isolation" in call or "--only-binary :all:" in call or '"$wheel"' in call
        assert "--require-hashes" in call or "--no-index" in call
