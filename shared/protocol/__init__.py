"""Both ends of the stream between a gateway and a worker, as state machines without I/O.

Everything that decides what happens to a stream lives in this package. The shells (the gateway's bus service and the
worker's node) feed it what they receive, with the time, and obey its instructions in order; no other module builds a
credit, an acknowledgement, a resume or a tombstone. Diagrams and the table of timers: docs/protocol.md.

Theory of operation
===================

One stream is one attempt at one answer: a job goes out, events come back, exactly one of them is terminal. Its name,
the sid, is chosen by the gateway and registered before the job is published, since the first frame often overtakes
the answer. NATS carries the messages and promises little: order within one subject from one sender, at most once.
After a slow consumer or a reconnect, thousands of messages may be missing without any error. Everything below follows
from that.

**Two sequences.** A frame holds every event that waits for one gateway; it costs one wake-up. `fseq` counts the
frames of a pair and shows that something is missing; `seq` counts the events of a stream and says what. The gateway
delivers an event only if its seq is the next one: what is early or late is dropped, never kept, so its memory is
bounded.

**Repair.** The worker keeps each stream's events until acknowledged. A hole in `fseq`, or silence (which may be a
lost tail), makes the gateway ask for every stream it may concern: `resume{sid: next seq}`. The worker goes back to
that event and repeats everything from there under new frame numbers, after a note `resumed`. Hence the rule for acks:
a loss in frame f is repaired for a stream once a note of it arrived in a later frame, or if the stream was opened
after everything up to f had been seen; when that holds for every registered stream, the cumulative ack passes f. Each
stream carries this as one number, `cover`; the ack may move to the smallest. A stream whose job was not accepted yet
is not named in a resume, since the worker might not have the job yet and would call it gone: the hole waits for it.
Loss of the repetition is a new, younger hole, handled the same way.

The worker, for its part, frees an event when the ack reaches the *last* frame that carried it. What a resume asks for
counts as lost, and so does everything else on its way: the window starts again at the last frame sent, or the
repetition of a lost full window could never be sent.

**Credit** does three jobs in one message. It opens the window (frames and bytes beyond the ack), it acknowledges, and
it lists the streams that the gateway still wants. That list is the lease: a stream that it lacks for a second is
aborted, whatever message was lost. With no credit at all the worker holds back, then gives up.

**Cancelling** removes a stream from the list at once, but not from the register: the cancel is repeated until the
terminal tells what was used, or three seconds passed. It works by sid alone, so it may overtake its job: the worker
remembers the sid (a tombstone) and refuses the job. A finished stream leaves a tombstone too, with its answer, so
that a late copy of its job runs nothing twice. Cancelling what the worker does not have is answered `gone`.

**Ending.** For every sid the gateway's caller hears exactly one of: Refused, Unanswered, or a Deliver that ends in
End or Fail. Where the peer cannot give a terminal, one is made up here, retryable, with the usage counted from what
arrived: `worker_lost`, `worker_restarted`, `worker_frozen`, `disconnected`, `stream_gone`; after an unanswered cancel
`cancel_unanswered`, not retryable. At the worker a finished stream waits for its acknowledgement and is never
aborted. What is given up unacknowledged is reported as Orphaned.

**Epochs.** Every message names the processes of both ends. A new process of the peer ends the streams of the old one;
messages of the old one are ignored however late they come. Only a peer that insists while its supposed successor
stays silent is believed again.

**Time.** `now` is an argument. Timers about a peer measure the peer only while we ourselves are well: they stop while
our connection is down and start from zero after our reconnect or a lag of our own loop, once the socket is drained.
Otherwise a stall of two seconds would make every worker look frozen.

**Hostile peers.** Impossible values raise ProtocolError and leave the state sound. Lists that a peer could fill are
bounded. A worker can end or garble its own streams, never those of another.
"""

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
