"""Loading: defaults < profile < file < environment < command line, with the origin of every value.

`shared.settings_sources` gathers what was given, as raw values under dotted paths; here the frozen tree is built from
it and checked. Nothing stops at the first mistake: one `SettingsError` lists them all, a line each.
"""

import math
from collections.abc import Mapping
from typing import get_args

import msgspec
from msgspec import inspect

from shared.errors import SettingsError
from shared.settings import Profile, Settings
from shared.settings_check import check
from shared.settings_schema import ROOT, Branch, describe, element, fields, leaves, marked, shown, variable
from shared.settings_sources import Gathered, Given, read_environment, read_file, read_overrides

PROFILES: dict[str, dict[str, object]] = {
    "dev": {},
    "test": {"gateway.port": 0, "admin.port": 0, "gateway.shutdown_grace_s": 5.0, "telemetry.log_level": "warning"},
    "prod": {"gateway.host": "0.0.0.0"},
}
"""What a profile changes, by path. Profile prod also demands more: see `shared.settings_check`."""


class Loaded(msgspec.Struct, frozen=True):
    """The tree, and where each value came from, by path.

    An origin is `default`, `profile prod`, `file evenflow.toml`, `environment EVENFLOW_GATEWAY__PORT` or
    `command line`.
    """

    settings: Settings
    origins: dict[str, str]


def load(path: str | None, environ: Mapping[str, str], overrides: Mapping[str, object] | None = None) -> Loaded:
    """Load and check everything.

    Args:
        path: A file that must exist; `None` takes `EVENFLOW_CONFIG`, which must exist too, else `evenflow.toml` if it
            does.
        environ: The environment. `EVENFLOW_WORKERS__0__SLOTS` sets the slots of the first worker.
        overrides: By dotted path, as `gateway.port`. `workers.*.engine` sets that of every worker, and `workers` to an
            integer (here and in the environment) makes it so many: further ones copy the first under their own names.

    Raises:
        SettingsError: With a line for every wrong key.
    """
    gathered = Gathered()
    read_file(gathered, path, environ)
    read_environment(gathered, environ)
    read_overrides(gathered, overrides or {})
    profile = _profile(gathered)
    for key, value in PROFILES[profile].items():
        gathered.given.setdefault(key, Given(value, f"profile {profile}"))
    settings = _build(gathered, ROOT, "")
    if not isinstance(settings, Settings):  # pragma: no cover  # the root of the schema is Settings
        raise TypeError(settings)
    wrong = {problem.path for problem in gathered.problems}
    unfit = [problem for problem in check(settings) if wrong.isdisjoint(problem.about)]
    problems = [*gathered.problems, *unfit]
    if problems:
        raise SettingsError("\n".join(f"{problem.path}: {problem.message}" for problem in problems))
    return Loaded(settings, gathered.origins)


def to_environment(settings: Settings) -> dict[str, str]:
    """The variables under which `load` gives these very settings: how one process hands its settings to another."""
    variables = {
        variable(name): str(len(getattr(settings, name))) for name, field in fields(ROOT).items() if element(field.type)
    }
    for path, _, value in leaves(settings):
        variables[variable(path)] = str(value).lower() if isinstance(value, bool) else str(value)
    return variables


def _profile(gathered: Gathered) -> str:
    given = gathered.given.get("profile")
    return str(given.value) if given is not None and given.value in get_args(Profile) else "dev"


def _build(gathered: Gathered, branch: Branch, prefix: str) -> msgspec.Struct:
    """One section of the tree. A wrong value is replaced by its default, so that the rest can be checked too."""
    values: dict[str, object] = {}
    annotations = {field.name: field.type for field in msgspec.structs.fields(branch.cls)}
    for field in branch.fields:
        path = prefix + field.name
        repeated = element(field.type)
        if repeated is not None:
            count = gathered.counts[path]
            values[field.name] = tuple(_build(gathered, repeated, f"{path}.{i}.") for i in range(count))
            if count == 0:
                gathered.origins[path] = gathered.list_origins.get(path, "default")
        elif isinstance(field.type, inspect.StructType):
            values[field.name] = _build(gathered, field.type, path + ".")
        else:
            values[field.name] = _leaf(gathered, field, annotations[field.name], path, values)
    return branch.cls(**values)


def _leaf(
    gathered: Gathered,
    field: inspect.Field,
    annotated: object,
    path: str,
    siblings: Mapping[str, object],
) -> object:
    """One value: converted to `annotated`, or the default."""
    given = gathered.given.get(path)
    if given is None:
        gathered.origins[path] = "default"
        if field.required:
            gathered.wrong(path, f"is missing; must be {describe(field.type)}")
            return ""
        return _default(field, path, siblings)
    gathered.origins[path] = given.origin
    try:
        value: object = msgspec.convert(given.value, annotated, strict=not given.text)
    except msgspec.ValidationError:
        value = None
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        what = "a secret value" if marked(field.type, "secret") else shown(field.type, given.value)
        gathered.wrong(path, f"{what} from {given.origin}; must be {describe(field.type)}")
        return "" if field.required else field.default
    return value


def _default(field: inspect.Field, path: str, siblings: Mapping[str, object]) -> object:
    """The default of a key; two keys of a worker depend on where it stands and on its engine."""
    section, _, rest = path.partition(".")
    if section == "workers":
        index, _, key = rest.partition(".")
        if key == "name":
            return f"w{int(index) + 1}"
        if key == "model" and siblings.get("engine") == "null":
            return "null"
    return field.default
