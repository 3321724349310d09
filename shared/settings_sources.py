"""Where settings come from: file, environment and command line, gathered as raw values under dotted paths.

Nothing stops at the first mistake: keys that do not exist are noted, and gathering goes on.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import inspect

from shared.settings_check import Problem
from shared.settings_schema import ENV_PREFIX, ROOT, Branch, bare, element, fields, nearest, variable

DEFAULT_FILE = "evenflow.toml"
CONFIG_VARIABLE = "EVENFLOW_CONFIG"
COMMAND_LINE = "command line"
MOST_ITEMS = 256

NOT_SETTINGS = frozenset({CONFIG_VARIABLE, "EVENFLOW_PROVE", "EVENFLOW_CI", "EVENFLOW_KEY", "EVENFLOW_API_KEY"})
"""Variables that other tools read; never mistaken for settings."""
NOT_SETTINGS_PREFIXES = ("EVENFLOW_TEST_", "EVENFLOW_PROVE_", "EVENFLOW_BENCH_")
# Kubernetes describes every service to every container: a service called `evenflow-gateway` becomes these.
_KUBERNETES = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$")
_KUBERNETES_PORT = re.compile(r"(tcp|udp|sctp)://")


class Given(msgspec.Struct, frozen=True):
    """One raw value; `text` when it is a string that stands for the key's own type."""

    value: object
    origin: str
    text: bool = False


class Gathered:
    """Raw values by path, how many items each list has, what was wrong so far; once built, the origin of each."""

    def __init__(self) -> None:
        self.given: dict[str, Given] = {}
        self.counts = {name: len(field.default) for name, field in fields(ROOT).items() if element(field.type)}
        self.list_origins: dict[str, str] = {}
        self.origins: dict[str, str] = {}
        self.problems: list[Problem] = []

    def wrong(self, path: str, message: str) -> None:
        """Note a mistake."""
        self.problems.append(Problem(path, message))

    def table(self, branch: Branch, prefix: str, table: Mapping[str, object], origin: str) -> None:
        """Take a table of a file, key by key."""
        known = fields(branch)
        for key, value in table.items():
            path = prefix + key
            if key not in known:
                self.wrong(path, f"unknown key in {origin}; {nearest(key, known)}")
                continue
            kind = known[key].type
            if element(kind) is not None:
                self.replace(path, value, origin)
            elif isinstance(kind, inspect.StructType):
                if isinstance(value, Mapping):
                    self.table(kind, path + ".", value, origin)
                else:
                    self.wrong(path, f"must be a table, as [{path}], in {origin}")
            else:
                self.given[path] = Given(value, origin)

    def replace(self, name: str, value: object, origin: str) -> None:
        """A whole list: what was given for its items before is forgotten."""
        repeated = element(fields(ROOT)[name].type)
        if repeated is None or not isinstance(value, list | tuple) or not all(isinstance(i, Mapping) for i in value):
            self.wrong(name, f"must be a list of tables, as [[{name}]], in {origin}")
            return
        self.resize(name, 0, origin)
        self.counts[name] = len(value)
        for index, item in enumerate(value):
            self.table(repeated, f"{name}.{index}.", item, origin)

    def resize(self, name: str, count: int, origin: str) -> None:
        """Make a list `count` long: drop items from its end, or add copies of the first, but for the name."""
        old, self.counts[name], self.list_origins[name] = self.counts[name], count, origin
        for path in list(self.given):
            section, _, rest = path.partition(".")
            index, _, key = rest.partition(".")
            if section != name:
                continue
            if int(index) >= count:
                del self.given[path]
            elif int(index) == 0 and key != "name":
                for extra in range(old, count):
                    self.given[f"{name}.{extra}.{key}"] = self.given[path]

    def put(self, path: str, given: Given, called: str) -> None:
        """Set one key by its path; `called` is the name under which the user knows it."""
        found = _find(path)
        if found is None:
            self.wrong(called, f"unknown setting; {nearest(path, _known_paths(path))}")
            return
        name, index, kind = found
        if isinstance(kind, inspect.VarTupleType) and index is None:
            self._put_list(name, given)
            return
        if isinstance(kind, inspect.StructType):
            self.wrong(called, f"is a table, not a value; set its keys: {', '.join(fields(kind))}")
            return
        if index is not None:
            count = self.counts[name]
            if index > count:
                self.wrong(called, f"there are {count} {name}, counted from 0; the next is {name}.{count}")
                return
            self.counts[name] = max(count, index + 1)
        self.given[path] = given

    def _put_list(self, name: str, given: Given) -> None:
        value = given.value
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        if isinstance(value, int) and 0 <= value <= MOST_ITEMS:
            self.resize(name, value, given.origin)
        elif isinstance(value, list | tuple):
            self.replace(name, value, given.origin)
        else:
            self.wrong(name, f"{value!r} from {given.origin}; must be how many, from 0 to {MOST_ITEMS}")


def _find(path: str) -> tuple[str, int | None, inspect.Type] | None:
    """What a dotted path leads to: its first name, its index in that list, and its type. `None`: nowhere."""
    first, *rest = path.split(".")
    if first not in fields(ROOT):
        return None
    kind, index = fields(ROOT)[first].type, None
    repeated = element(kind)
    if repeated is not None and rest:
        if not rest[0].isdecimal():
            return None
        index, kind = int(rest.pop(0)), repeated
    for name in rest:
        if not isinstance(kind, inspect.StructType) or name not in fields(kind):
            return None
        kind = fields(kind)[name].type
    return first, index, kind if repeated is None or index is not None else bare(kind)


def _known_paths(like: str) -> Iterator[str]:
    """Paths to suggest: those of the same section if there is one, with the index that was written."""
    section, _, rest = like.partition(".")
    index = rest.partition(".")[0]
    number = index if index.isdecimal() else "0"
    known = fields(ROOT)
    for name, field in known.items():
        if section in known and name != section:
            continue
        repeated = element(field.type)
        prefix = f"{name}.{number}." if repeated else f"{name}."
        branch = repeated or field.type
        if isinstance(branch, inspect.StructType):
            for key, inner in fields(branch).items():
                if isinstance(inner.type, inspect.StructType):
                    yield from (f"{prefix}{key}.{deep}" for deep in fields(inner.type))
                else:
                    yield prefix + key
        else:
            yield name


def read_file(gathered: Gathered, path: str | None, environ: Mapping[str, str]) -> None:
    """Read the file at `path`, else at `EVENFLOW_CONFIG`, else `evenflow.toml` if there is one."""
    chosen = path or environ.get(CONFIG_VARIABLE) or ""
    asked_by = "--config" if path else CONFIG_VARIABLE
    file = Path(chosen or DEFAULT_FILE)
    if not chosen and not file.exists():
        return
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        gathered.wrong(asked_by if chosen else str(file), f"cannot read {file}: {error.strerror}")
    except ValueError as error:  # both bad TOML and bad UTF-8
        gathered.wrong(str(file), f"is not TOML: {error}")
    else:
        gathered.table(ROOT, "", table, f"file {file}")


def read_environment(gathered: Gathered, environ: Mapping[str, str]) -> None:
    """Read every `EVENFLOW_` variable that is ours."""
    ours = {}
    for name in sorted(environ):
        if name.startswith(ENV_PREFIX) and not _foreign(name, environ[name]):
            path = name.removeprefix(ENV_PREFIX).lower().replace("__", ".")
            section = path.split(".")[0]
            if "." in path or section in fields(ROOT):
                ours[name] = path
            elif _slipped(path):
                gathered.wrong(name, f"unknown setting; did you mean {variable(_slipped(path))}?")
    for name, path in sorted(ours.items(), key=lambda item: _precedence(item[1])):
        gathered.put(path, Given(environ[name], f"environment {name}", text=True), name)


def _foreign(name: str, value: str) -> bool:
    if name in NOT_SETTINGS or name.startswith(NOT_SETTINGS_PREFIXES):
        return True
    return bool(_KUBERNETES.search(name) or (name.endswith("_PORT") and _KUBERNETES_PORT.match(value)))


def _slipped(path: str) -> str:
    """The nearest key of a section that was written with one underscore where two belong; empty if it is none."""
    section, _, key = path.partition("_")
    known = fields(ROOT)
    if section not in known:
        return ""
    kind = known[section].type
    if not isinstance(kind, inspect.StructType):
        return f"{section}.0.{key}" if element(kind) else ""
    return f"{section}.{key if key in fields(kind) else next(iter(fields(kind)))}"


def _precedence(path: str) -> tuple[int, list[int | str]]:
    """Lengths of lists first, then what is said of every item, then of one; indices by number."""
    parts = path.split(".")
    rank = 0 if len(parts) == 1 else 1 if "*" in parts else 2
    return rank, [f"{part:0>6}" if part.isdecimal() else part for part in parts]


def read_overrides(gathered: Gathered, overrides: Mapping[str, object]) -> None:
    """Read what the command line says; `name.*.key` is set in every item of the list."""
    for path in sorted(overrides, key=_precedence):
        value = overrides[path]
        given = Given(value, COMMAND_LINE, text=isinstance(value, str))
        name, star, rest = path.partition(".*.")
        targets = [f"{name}.{index}.{rest}" for index in range(gathered.counts.get(name, 1))] if star else [path]
        for target in targets:
            gathered.put(target, given, target)
