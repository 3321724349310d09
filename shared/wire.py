"""Every message that crosses the bus, field by field.

All of them are tagged, array-like msgspec Structs in MessagePack: small, quick, and open to growth at the end, since a
decoder ignores trailing fields that it does not know. `PROTO` stands in announcements, jobs and heartbeats; a peer with
another version is refused (`Nack("bad_proto")`), never guessed at. Field by field prose: docs/wire.md.

Identities: `gid` and `wid` are stable configured names and stand in the subject, not in the body. `gep` and `wep` are
epochs, random per process start. `sid` is a stream id chosen by the gateway, unique within (gid, gep). `aid` is an
attempt id, `<request id>.<choice>.<attempt>`. Times on the wire are durations in milliseconds, never clock readings.
"""

from typing import Any, Literal, TypeVar

import msgspec

PROTO = 1

State = Literal["starting", "loading", "ready", "draining"]
FinishReason = Literal["stop", "length", "cancelled"]
ServiceClass = Literal["interactive", "batch"]
InputKind = Literal["chat", "text", "ids"]
NackCode = Literal[
    "busy", "unknown_model", "draining", "too_large", "bad_request", "deadline", "cancelled", "bad_proto", "internal"
]


class _Body(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Base of the parts of a message: array-like, without a tag."""


# ------------------------------ worker announces


class Slots(_Body, frozen=True):
    """How many requests a worker can hold, and what they are doing. `free` = total - prefill - decode - waiting."""

    total: int
    free: int
    prefill: int = 0
    decode: int = 0


class Kv(_Body, frozen=True):
    """Key/value cache in tokens; `bits` per cached value (16, 8, 6, 4)."""

    total: int = 0
    free: int = 0
    bits: float = 16.0


class Speed(_Body, frozen=True):
    """Measured speed. `itl_ms` maps a batch-size bucket to the inter-token latency seen there."""

    prefill_tps: float = 0.0
    itl_ms: dict[int, float] = {}
    bound_tps: float = 0.0


class Draft(_Body, frozen=True):
    """Speculation as it runs now: which proposer, how many tokens a step, and the running totals."""

    kind: Literal["none", "ngram", "model"] = "none"
    length: int = 0
    accepted: int = 0
    proposed: int = 0
    tokens_per_step: float = 0.0


class Device(_Body, frozen=True):
    """What the worker runs on. `kernel` names the attention kernel or the fallback in use; memory in bytes."""

    kind: str = "cpu"
    driver: str = ""
    runtime: str = ""
    kernel: str = ""
    memory: int = 0
    temperature_c: float | None = None
    power_w: float | None = None


class Version(_Body, frozen=True):
    """One model version that a worker serves. `features` says which request fields it can honour.

    `template_tokens` is what its chat template makes of one empty message, `message_tokens` what each further one adds;
    0 is not known.
    """

    model: str
    version: str
    digest: str
    context: int
    max_output: int
    vocab_hash: str
    features: tuple[str, ...] = ()
    template_tokens: int = 0
    message_tokens: int = 0


class Ann(msgspec.Struct, array_like=True, frozen=True, kw_only=True, tag="ann"):
    """`ann.<wid>`: every 500 ms and on every change."""

    proto: int = PROTO
    wep: str
    n: int
    state: State
    pool: str = "default"
    versions: tuple[Version, ...] = ()
    slots: Slots
    kv: Kv = Kv()
    speed: Speed = Speed()
    draft: Draft = Draft()
    queue: int = 0
    device: Device = Device()
    restarts: int = 0
    load_failures: int = 0
    reason: str = ""
    load_progress: float = 0.0


# ------------------------------ gateways announce


class PoolNeed(_Body, frozen=True):
    """What one gateway has waiting for a pool: `v` is the fair-share counter of its next tenant in that class."""

    pool: str
    service_class: ServiceClass
    queued: int
    v: int


class Ghb(msgspec.Struct, array_like=True, frozen=True, kw_only=True, tag="ghb"):
    """`ghb.<gid>`: heartbeat of a gateway, every 500 ms and on change."""

    proto: int = PROTO
    gep: str
    store_id: str
    n: int
    pools: tuple[PoolNeed, ...] = ()


class Counts(msgspec.Struct, array_like=True, frozen=True, kw_only=True, tag="counts"):
    """`cnt.<gid>`: fair-share counters changed since the last one. `rows`: pool, tenant, charged, refunded, lift."""

    gep: str
    full: bool
    rows: tuple[tuple[str, str, int, int, int], ...]


class Changed(msgspec.Struct, array_like=True, frozen=True, kw_only=True, tag="cfg"):
    """`cfg`: a hint that the store's revision moved. The row in the store is the truth."""

    revision: int


# ------------------------------ the job


class Sampling(_Body, frozen=True):
    """Neutral unless set: an absent field never means an engine's own default."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}


class Grammar(_Body, frozen=True):
    """A constraint on the output. `schema` is a JSON schema (for json_schema) or a pattern (for regex)."""

    kind: Literal["json_object", "json_schema", "regex"]
    schema: Any = None


class Resume(_Body, frozen=True):
    """Go on after these tokens of an earlier attempt, of which the client already has `delivered_chars` characters."""

    ids: tuple[int, ...]
    delivered_chars: int


class Job(msgspec.Struct, array_like=True, frozen=True, kw_only=True, tag="job"):
    """`w.<wid>.job.<gid>`, a request. `input` is a list of messages (chat), a string (text) or token ids (ids).

    `max_tokens` is what the client asked for: more than fits is refused. The gateway's own limits, where it has some:
    a prompt over `most_prompt` tokens is refused, an answer ends after `most_output` tokens.

    What the tenant's quotas leave for the whole request, prompt and all its `choices` together: the answer ends before
    they take more than `most_total`, and a prompt that leaves no token of it to each of them is refused; what was asked
    for and could never fit into `window` is refused as well.
    """

    proto: int = PROTO
    gep: str
    sid: int
    aid: str
    tenant: str
    model: str
    version: str
    kind: InputKind
    input: Any
    tools: Any = None
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    seed: int | None = None
    logprobs: int | None = None
    grammar: Grammar | None = None
    deadline_ms: int
    service_class: ServiceClass = "interactive"
    resume: Resume | None = None
    most_prompt: int | None = None
    most_output: int | None = None
    most_total: int | None = None
    window: int | None = None
    choices: int = 1


class Accept(msgspec.Struct, array_like=True, frozen=True, kw_only=True, tag="accept"):
    """The worker has the job. `ahead` requests will start before it."""

    wep: str
    sid: int
    prompt_tokens: int
    cached_tokens: int = 0
    ahead: int = 0
    max_tokens: int = 0


class Nack(msgspec.Struct, array_like=True, frozen=True, kw_only=True, tag="nack"):
    """The worker does not take the job. For `too_large`, `prompt_tokens` and `limit` carry both counts."""

    wep: str
    sid: int
    code: NackCode
    message: str
    retry_after_ms: int = 0
    prompt_tokens: int = 0
    limit: int = 0
    param: str = ""
    error_code: str = ""


# ------------------------------ frames: the tokens
# They never form cycles: the collector need not look at them.


class Usage(_Body, frozen=True, gc=False):
    """Tokens of one attempt. `completion` counts every token the model produced, the end-of-text token included.

    `accepted` of `proposed` draft tokens were right. `device_seconds` is the request's share of engine step time.
    """

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    accepted: int = 0
    proposed: int = 0
    device_seconds: float = 0.0


class Timings(_Body, frozen=True, gc=False):
    """Milliseconds that one attempt spent in the worker's queue, in prefill and in decode."""

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0


class TopLogprob(_Body, frozen=True, gc=False):
    """One alternative at one position: natural logarithm of its probability."""

    id: int
    token: str
    bytes: bytes
    logprob: float


class TokenLogprob(_Body, frozen=True, gc=False):
    """The chosen token at one position, with the best alternatives."""

    id: int
    token: str
    bytes: bytes
    logprob: float
    top: tuple[TopLogprob, ...] = ()


class Text(msgspec.Struct, array_like=True, frozen=True, tag=0, gc=False):
    """A piece of answer: whole characters only, never part of a stop string. May be empty when ids alone are due."""

    sid: int
    seq: int
    text: str
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None


class Prefill(msgspec.Struct, array_like=True, frozen=True, tag=1, gc=False):
    """`done` of `total` prompt tokens are in the cache, `cached` of them without work."""

    sid: int
    seq: int
    done: int
    total: int
    cached: int


class End(msgspec.Struct, array_like=True, frozen=True, tag=2, gc=False):
    """The attempt is over and went well (terminal)."""

    sid: int
    seq: int
    reason: FinishReason
    usage: Usage
    timings: Timings = Timings()


class Fail(msgspec.Struct, array_like=True, frozen=True, tag=3, gc=False):
    """The attempt is over and did not go well (terminal)."""

    sid: int
    seq: int
    code: str
    message: str
    retryable: bool
    usage: Usage = Usage()


class Note(msgspec.Struct, array_like=True, frozen=True, tag=4, gc=False):
    """Outside the sequence (`seq` is -1): a resume was answered. `gone`: the worker knows no such stream."""

    sid: int
    seq: int
    what: Literal["resumed", "gone"]


Event = Text | Prefill | End | Fail | Note


class Frame(msgspec.Struct, array_like=True, frozen=True, kw_only=True, tag="frame", gc=False):
    """`g.<gid>.f.<wid>`: every event pending for one gateway when the worker's loop turns.

    `fseq` counts frames per (worker epoch, gateway epoch) from 1; `seq` counts events per stream from 0.
    """

    wep: str
    gep: str
    fseq: int
    events: tuple[Event, ...]


class Credit(msgspec.Struct, array_like=True, frozen=True, kw_only=True, tag="credit"):
    """`w.<wid>.credit.<gid>`: flow control, acknowledgement and lease in one.

    `ack`: highest `fseq` up to which every frame arrived or was repeated. `allow_fseq`: highest `fseq` allowed.
    `allow_bytes`: bytes allowed beyond `ack` (a running total would leak the bytes of lost frames). `open`: the streams
    the gateway still wants. `ended`: terminals that arrived, whose buffers can go. `resume`: next `seq` wanted.
    """

    gep: str
    wep: str
    ack: int
    allow_fseq: int
    allow_bytes: int
    open: tuple[int, ...]
    ended: tuple[int, ...] = ()
    resume: dict[int, int] = {}


class Cancel(msgspec.Struct, array_like=True, frozen=True, kw_only=True, tag="cancel"):
    """`w.<wid>.cancel.<gid>`: stop a stream. May arrive before its job, which is then refused."""

    gep: str
    sid: int
    reason: str


class Ctl(msgspec.Struct, array_like=True, frozen=True, kw_only=True, tag="ctl"):
    """`w.<wid>.ctl.<gid>`: what an operator asks of a worker."""

    what: Literal["drain", "undrain", "reload", "load", "unload", "probe"]
    argument: str = ""


class Offer(msgspec.Struct, array_like=True, frozen=True, kw_only=True, tag="offer"):
    """`offer.<gid>.<wid>`: a freed slot, offered to the gateway whose next tenant is owed most."""

    wep: str
    pool: str
    slots: int
    expires_ms: int


# ------------------------------ usage records


class Open(msgspec.Struct, array_like=True, frozen=True, kw_only=True, tag="open"):
    """`usage.g.<gid>`, before each job: what was reserved for the attempt.

    The request in an `aid` is the gateway's own id of it, a UUID: a client that names two requests alike pays for both.
    `label` is the id that the client knows. `day` is when it counts for budgets: the ordinal of a date in the tenant's
    calendar (1 is 1 January of year 1). Of an answer that is not `streamed`, nothing is delivered before all is.
    """

    n: int
    gep: str
    aid: str
    tenant: str
    key: str
    model: str
    version: str
    wid: str
    reserved: int
    max_tokens: int
    strict: bool
    day: int = 0
    label: str = ""
    streamed: bool = True


class Check(msgspec.Struct, array_like=True, frozen=True, kw_only=True, tag="check"):
    """`usage.g.<gid>`, every 64 tokens or 2 s: what the request's client has so far. `aid` is the request alone."""

    n: int
    gep: str
    aid: str
    prompt: int
    charged: int


class Close(msgspec.Struct, array_like=True, frozen=True, kw_only=True, tag="close"):
    """`usage.g.<gid>`, once per request: totals over all its attempts and choices. `aid` is the request alone.

    `generated` counts every token made for it, `charged` those that its tenant pays for; see docs/usage.md.
    """

    n: int
    gep: str
    aid: str
    tenant: str
    key: str
    model: str
    version: str
    prompt: int
    cached: int
    charged: int
    generated: int
    accepted: int
    proposed: int
    device_seconds: float
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    outcome: str
    label: str = ""
    day: int = 0


class Orphan(msgspec.Struct, array_like=True, frozen=True, kw_only=True, tag="orphan"):
    """`usage.w.<wid>`: what a worker had made for a gateway that lost its lease."""

    n: int
    wep: str
    aid: str
    generated: int
    acked: int


Message = Ann | Ghb | Counts | Changed | Job | Frame | Credit | Cancel | Ctl | Offer | Open | Check | Close | Orphan
Reply = Accept | Nack
UsageRecord = Open | Check | Close | Orphan

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode

M = TypeVar("M")


def decoder(kind: Any) -> "msgspec.msgpack.Decoder[Any]":
    """A decoder for one message type or union. It raises `msgspec.DecodeError` on anything else."""
    return msgspec.msgpack.Decoder(kind)


def is_terminal(event: Event) -> bool:
    """True for the one event that ends a stream."""
    return isinstance(event, End | Fail)
