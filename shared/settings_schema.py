"""What the tree of settings looks like, read off its types: keys, what each accepts, how it is shown."""

import difflib
from collections.abc import Iterable

import msgspec
from msgspec import inspect

from shared.settings import Settings

ENV_PREFIX = "EVENFLOW_"
PUBLIC_CREDENTIALS = ("password=", "token=", "secret=")
SHOWN_CHARS = 80

Branch = inspect.StructType
ROOT: Branch = inspect.type_info(Settings)  # type: ignore[assignment]  # a Struct's info is a StructType


def fields(branch: Branch) -> dict[str, inspect.Field]:
    """The keys of one section, by name."""
    return {field.name: field for field in branch.fields}


def bare(kind: inspect.Type) -> inspect.Type:
    """The type without its annotations."""
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def element(kind: inspect.Type) -> Branch | None:
    """The section that a list such as `[[workers]]` repeats; `None` for anything else."""
    kind = bare(kind)
    if isinstance(kind, inspect.VarTupleType) and isinstance(kind.item_type, inspect.StructType):
        return kind.item_type
    return None


def marked(kind: inspect.Type, mark: str) -> bool:
    """Whether the type was annotated as `secret` or `url`."""
    return isinstance(kind, inspect.Metadata) and bool((kind.extra or {}).get(mark))


def describe(kind: inspect.Type) -> str:
    """What a key accepts, in words: `an integer from 0 to 65535`."""
    kind = bare(kind)
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values=values):
            return "one of " + ", ".join(map(str, values))
        case inspect.IntType(ge=low, le=high):
            if high is not None:
                return f"an integer from {low} to {high}"
            return "an integer" if low is None else f"an integer, at least {low}"
        case inspect.FloatType(gt=low):
            return "a number" if low is None else f"a number above {low:g}"
        case inspect.StrType(pattern=pattern, min_length=shortest):
            if pattern is not None:
                return f"text like `{pattern}`"
            return "text" if not shortest else "text, not empty"
        case inspect.StructType():
            return "a table"
        case inspect.VarTupleType():
            return "a list of tables"
        case _:
            return "another type"


def mask_url(url: str) -> str:
    """A URL, or several separated by commas, without user and password. Also hides `?password=` and its like."""
    parts = []
    for part in url.split(","):
        scheme, separator, rest = part.rpartition("://")
        if "@" in rest:
            rest = "***@" + rest.rpartition("@")[2]
        address, question, query = rest.partition("?")
        pairs = (
            pair.partition("=")[0] + "=***" if pair.lower().startswith(PUBLIC_CREDENTIALS) else pair
            for pair in query.split("&")
        )
        parts.append(scheme + separator + address + question + "&".join(pairs))
    return ",".join(parts)


def shown(kind: inspect.Type, value: object) -> str:
    """A value as people may see it: secrets as `set` or `unset`, URLs without passwords, long text cut."""
    if marked(kind, "secret"):
        return "set" if value else "unset"
    if marked(kind, "url") and isinstance(value, str):
        value = mask_url(value)
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."


def nearest(wrong: str, known: Iterable[str]) -> str:
    """A hint that ends a message about an unknown name."""
    names = sorted(known)
    close = difflib.get_close_matches(wrong, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"known here: {', '.join(names)}"


def variable(path: str) -> str:
    """`gateway.port` -> `EVENFLOW_GATEWAY__PORT`."""
    return ENV_PREFIX + path.replace(".", "__").upper()


def leaves(tree: msgspec.Struct, branch: Branch = ROOT, prefix: str = "") -> Iterable[tuple[str, inspect.Type, object]]:
    """Every key of a tree of settings, depth first: its path, its type, its value. Empty lists have no keys."""
    for field in branch.fields:
        path, value = prefix + field.name, getattr(tree, field.name)
        repeated = element(field.type)
        if repeated is not None:
            for index, item in enumerate(value):
                yield from leaves(item, repeated, f"{path}.{index}.")
        elif isinstance(field.type, inspect.StructType):
            yield from leaves(value, field.type, path + ".")
        else:
            yield path, field.type, value
