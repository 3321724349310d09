"""What an `evenflow up` that runs here has started, seen from another process."""

from pathlib import Path

from gateway.up.process import recorded

_LISTENING = "0A"  # TCP_LISTEN, as /proc/net/tcp writes it


def listens(records: Path, name: str, port: int) -> bool:
    """Return whether the child `name`, as recorded in `records`, runs and is the one that listens on TCP `port`.

    Looks into /proc, see proc(5); a process of another user is none of ours.
    """
    pid = recorded(records, name)
    if pid is None:
        return False
    process = Path(f"/proc/{pid}")
    try:
        sockets = {str(link.readlink()) for link in (process / "fd").iterdir()}
        lines = [line for table in ("tcp", "tcp6") for line in _lines(process / "net" / table)]
    except OSError:
        return False
    return any(
        state == _LISTENING and int(address.rpartition(":")[2], 16) == port and f"socket:[{inode}]" in sockets
        for address, state, inode in lines
    )


def _lines(table: Path) -> list[tuple[str, str, str]]:
    """Local address, state and inode of every socket; no lines where the kernel lacks the protocol."""
    try:
        rows = [line.split() for line in table.read_text(encoding="ascii").splitlines()[1:]]
    except FileNotFoundError:
        return []
    return [(row[1], row[3], row[9]) for row in rows]
