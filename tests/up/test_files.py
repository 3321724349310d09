"""Files that `up` keeps, and the one line that each trouble becomes."""

import errno
import os
import socket
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gateway.up import files
from gateway.up.files import (
    check_port,
    exclusive,
    explain,
    free_port,
    keep_secret,
    leave_nothing,
    private_directory,
    read_private,
    write_private,
)
from shared.errors import StartError

HOST = "127.0.0.1"


def test_a_second_holder_gets_one_line_that_names_the_first(tmp_path):
    lock = tmp_path / "lock"
    code = """
        import pathlib, sys
        from gateway.up.files import exclusive
        from shared.errors import StartError
        try:
            with exclusive(pathlib.Path(sys.argv[1])): print("mine")
        except StartError as error: print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(lock)]
    with exclusive(lock):
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert told == f"already running here (process {os.getpid()}): {lock} is locked\n"
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "mine\n"


def test_the_lock_does_not_pass_to_children(tmp_path):
    lock = tmp_path / "lock"
    with exclusive(lock):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with exclusive(lock):
            pass
    finally:
        child.kill()
        child.wait()


def test_errors_of_the_locked_block_stay_as_they_are(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^from the block$"), exclusive(tmp_path / "lock"):
        raise FileNotFoundError("from the block")


def test_secrets_are_random_private_and_kept(tmp_path):
    first, second = keep_secret(tmp_path / "a"), keep_secret(tmp_path / "b")
    assert first != second
    assert len(first) >= 32
    assert keep_secret(tmp_path / "a") == first
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_an_empty_secret_left_by_a_full_disk_is_made_anew(tmp_path):
    (tmp_path / "a").write_text("")
    assert keep_secret(tmp_path / "a")


def test_a_full_disk_leaves_the_old_file_whole_and_is_one_line(tmp_path, monkeypatch):
    path = tmp_path / "secret"
    write_private(path, "old")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(StartError, match=r"^.*/secret: the disk is full: free some space and start again$"):
        write_private(path, "new")
    assert read_private(path) == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize(
    ("number", "told"),
    [(errno.EACCES, "permission denied"), (errno.EROFS, "read-only"), (errno.EADDRNOTAVAIL, "no such address")],
)
def test_troubles_are_told_in_words(number, told):
    assert told in str(explain(OSError(number, "raw"), "x"))


def test_a_file_in_the_way_of_a_directory_is_one_line(tmp_path):
    (tmp_path / "state").write_text("")
    for path in (tmp_path / "state", tmp_path / "state" / "nats"):
        with pytest.raises(StartError, match="a file stands where a directory is needed"):
            private_directory(path)


def test_an_open_directory_is_closed_to_others(tmp_path):
    path = tmp_path / "state"
    path.mkdir(mode=0o755)
    assert stat.S_IMODE(private_directory(path).stat().st_mode) == 0o700


def test_a_taken_port_is_one_line_naming_the_setting():
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=f"^{HOST}:{port}: the port is taken by another program; X=PORT chooses"):
            check_port(HOST, port, "X")
    check_port(HOST, port, "X")


def test_free_ports_lie_outside_the_range_of_outgoing_connections():
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert 20000 <= free_port(HOST) < max(low, 32000)


def test_what_a_failed_start_made_is_removed_only_if_nothing_of_worth_is_in_it(tmp_path):
    state = tmp_path / "state"
    lock = state / "run" / "lock"
    private_directory(lock.parent)
    private_directory(state / "log")
    lock.touch()
    (state / "demo.key").touch()
    leave_nothing(state, {lock})
    assert lock.exists()
    (state / "demo.key").unlink()
    leave_nothing(state, {lock})
    assert list(tmp_path.iterdir()) == []
