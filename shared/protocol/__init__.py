"""Both ends of one stream between a gateway and a worker, as state machines without I/O."""

from shared.protocol.gateway import GatewayEnd
from shared.protocol.instructions import (
    Abort,
    Accepted,
    Answer,
    Deliver,
    GatewayCounters,
    GatewayInstruction,
    Orphaned,
    Refused,
    ResendJob,
    SendCancel,
    SendCredit,
    SendFrame,
    Start,
    Unanswered,
    WorkerCounters,
    WorkerInstruction,
)
from shared.protocol.timing import Timing
from shared.protocol.worker import WorkerEnd

__all__ = [
    "Abort",
    "Accepted",
    "Answer",
    "Deliver",
    "GatewayCounters",
    "GatewayEnd",
    "GatewayInstruction",
    "Orphaned",
    "Refused",
    "ResendJob",
    "SendCancel",
    "SendCredit",
    "SendFrame",
    "Start",
    "Timing",
    "Unanswered",
    "WorkerCounters",
    "WorkerEnd",
    "WorkerInstruction",
]
