"""Who may publish and subscribe where on the bus: made from the one table in `shared.subjects`, and from nothing else.

Both lists of an identity are allow lists: what is not in them is refused by the NATS server. Its own name stands in
every subject that speaks for it, so nobody can speak, or listen, as somebody else.
"""

import msgspec

from shared.subjects import PREFIX, RIGHTS, TABLE, Kind

ANY = "*"


class Permissions(msgspec.Struct, frozen=True):
    """Two allow lists of NATS subjects, wildcards included, sorted."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def permissions(kind: Kind, name: str) -> Permissions:
    """What the identity `name` of that kind may do."""
    publish, subscribe = set(), set()
    for row in TABLE:
        if row.publisher == kind:
            publish.add(_filled(row.pattern, kind, name))
        if row.subscriber in (kind, "both") and kind != "provision":
            # Among its own kind, the name in the subject is the sender's: whoever listens hears them all.
            subscribe.add(_filled(row.pattern, kind, ANY if row.publisher == kind else name))
    for right in RIGHTS:
        if right.identity == kind:
            (publish if right.verb == "publish" else subscribe).add(right.pattern.format(name=name))
    return Permissions(tuple(sorted(publish)), tuple(sorted(subscribe)))


def covers(allowed: str, subject: str) -> bool:
    """Whether the pattern `allowed` holds every subject that the pattern `subject` holds.

    NATS: tokens between dots; `*` is any one token, a last `>` one or more of them.
    """
    have, want = allowed.split("."), subject.split(".")
    for index, part in enumerate(have):
        if part == ">":
            return len(want) > index
        if index >= len(want) or want[index] == ">" or part not in (ANY, want[index]):
            return False
    return len(have) == len(want)


def _filled(pattern: str, kind: Kind, own: str) -> str:
    names = {"gid": own, "wid": ANY} if kind == "gateway" else {"gid": ANY, "wid": own}
    return f"{PREFIX}.{pattern.format(**names)}"
