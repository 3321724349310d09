"""Look inside a built wheel: our three packages and the metadata, nothing else, and nothing of them left out."""

import subprocess
import sys
import zipfile
from pathlib import Path

PACKAGES = {"gateway", "workers", "shared"}


def main(wheel: str) -> int:
    """Return 0 if `wheel` is right, else 1 with a line for every fault."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    metadata = f"{'-'.join(Path(wheel).name.split('-')[:2])}.dist-info"
    faults = [f"does not belong: {name}" for name in sorted(names) if name.split("/")[0] not in PACKAGES | {metadata}]
    # What git tracks there is what a wheel must hold: templates and migrations are easily left out.
    tracked = subprocess.run(["git", "ls-files", "--", *sorted(PACKAGES)], capture_output=True, text=True, check=True)
    faults += [f"missing: {name}" for name in tracked.stdout.splitlines() if Path(name).exists() and name not in names]
    for needed in ("METADATA", "entry_points.txt", "licenses/LICENSE"):
        if f"{metadata}/{needed}" not in names:
            faults.append(f"missing: {metadata}/{needed}")
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{Path(wheel).name}: {len(names)} files, {'wrong' if faults else 'as they should be'}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
