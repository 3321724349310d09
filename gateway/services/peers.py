"""What other processes say of themselves: who it was, and whether they speak our protocol."""

from typing import TypeVar

import msgspec

from shared import subjects, wire
from shared.bus import Delivery
from shared.errors import ProtocolError

P = TypeVar("P", wire.Ann, wire.Ghb)


def introduced(delivery: Delivery, decoder: "msgspec.msgpack.Decoder[P]") -> tuple[str, P]:
    """The name of the process, which its subject ends with, and its message. Raises ProtocolError if we cannot talk."""
    name = subjects.last(delivery.subject)
    try:
        said = decoder.decode(delivery.data)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"{delivery.subject}: {error}") from error
    if said.proto != wire.PROTO:
        raise ProtocolError(f"{name} speaks protocol {said.proto}, this gateway {wire.PROTO}")
    return name, said
