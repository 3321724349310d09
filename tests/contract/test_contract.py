"""The contract that every engine keeps, point by point; docs/engines.md numbers them."""

import asyncio
import gc
import json
import os
import time
from pathlib import Path

import msgspec
import pytest

from shared.wire import Grammar, Resume, Sampling
from tests.contract.subjects import (
    GREEDY,
    LLAMA,
    NAMES,
    Answer,
    Subject,
    collect,
    create,
    rest,
    settled,
    spec_of,
    until,
)
from tests.workers.gguf_files import write_gguf
from workers.engines.base import Delta, DraftSpec, Failed, Finished, NeedsCapacity, Prefilled, Started, TooLong

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]
every = pytest.mark.parametrize("subject", NAMES, indirect=True, scope="session")
llamas = pytest.mark.parametrize("subject", LLAMA, indirect=True, scope="session")

EMOJI = "Repeat this exactly: '👩‍👩‍👧‍👦 日本語 e\u0301 🏳️‍🌈 नमस्ते 👩‍👩‍👧‍👦 日本語'"
SENTENCE = "the red fox and the blue fox met the red fox and the blue fox near the old mill."
QUOTE = f"Repeat exactly: {SENTENCE} And again: {SENTENCE}"


async def one_token(subject: Subject) -> None:
    """The engine still serves."""
    answer = await asyncio.wait_for(subject.run("hello", 1), 30)
    assert isinstance(answer.end, Finished)
    assert answer.end.usage.completion == 1


# ---------------------------------------------------------------- 1, 3, 4: ends, counts


@every
@pytest.mark.parametrize("tokens", [1, 2, 33])
async def test_length_is_exactly_max_tokens(subject, tokens):
    answer = await subject.run("Write a long story about a fox.", tokens, full=True)
    assert answer.end.reason == "length"
    assert answer.end.usage.completion == tokens
    assert isinstance(answer.events[0], Started)
    assert any(isinstance(event, Prefilled) and event.done == event.total for event in answer.events)


@every
async def test_the_whole_context_can_be_used_but_not_one_token_more(subject):
    context = subject.engine.capabilities().context
    prompt = tuple(await subject.engine.tokenizer.encode("fox " * context, special=False))[: context - 8]
    answer = await subject.run("", 8, full=True, prompt=prompt)
    assert answer.end.usage.completion == 8
    over = await subject.ask("", 9, prompt=prompt)
    assert subject.engine.fits(over) == TooLong(len(prompt), 9, context)
    refused = await collect(subject.engine, over)
    assert refused.end.code == "too_large"
    assert str(len(prompt)) in refused.end.message
    assert str(context) in refused.end.message
    await one_token(subject)


@llamas
async def test_the_end_of_text_token_is_counted_and_named(subject):
    answer = await subject.run("What is 2+2? Answer with one number.", 200)
    assert answer.end.reason == "stop"
    eos = await subject.engine.tokenizer.encode(subject.engine.capabilities().eos, special=True)
    assert answer.ids[-1] == eos[0]
    assert answer.end.usage.completion == len(answer.ids)
    assert subject.engine.capabilities().eos not in answer.text


@every
async def test_timings_and_device_share_are_sane(subject):
    begun = time.monotonic()
    answer = await subject.run("hello", 5, full=True)
    took = (time.monotonic() - begun) * 1000
    timings = answer.end.timings
    assert timings.queue_ms + timings.prefill_ms + timings.decode_ms <= took + 1
    assert 0 <= answer.end.usage.device_seconds * 1000 <= took + 1


# ---------------------------------------------------------------- 2, 9: text, stop strings


@llamas
@pytest.mark.parametrize("tokens", [5, 12, 18, 27])
async def test_characters_of_many_tokens_are_never_split(subject, tokens):
    prompt = await subject.chat(EMOJI)
    prompt += tuple(await subject.engine.tokenizer.encode("'👩‍👩‍👧‍👦 日本", special=False))
    answer = await subject.run("", tokens, full=True, prompt=prompt)
    assert len(answer.text.encode()) > len(answer.text)
    assert await subject.engine.tokenizer.decode(answer.ids) == answer.text


@every
@pytest.mark.parametrize("size", [1, 2, 7])
async def test_a_stop_string_ends_the_answer_just_before_it(subject, size):
    plain = await subject.run("Tell me about the sea.", 40, full=True)
    stop = plain.text[20 : 20 + size]
    answer = await subject.run("Tell me about the sea.", 40, full=True, stop=(stop, "never in there \x00"))
    assert answer.end.reason == "stop"
    assert answer.text == plain.text[: plain.text.index(stop)]
    assert answer.ids == plain.ids[: len(answer.ids)]
    whole = await subject.engine.tokenizer.decode(answer.ids)
    assert stop in whole
    assert stop not in await subject.engine.tokenizer.decode(answer.ids[:-1])
    assert answer.end.usage.completion == len(answer.ids)


@every
async def test_text_held_back_for_a_stop_string_comes_out_at_the_end(subject):
    plain = await subject.run("Tell me about the sea.", 12, full=True)
    almost = (plain.text[-6:] + "\x00", plain.text[3:9] + "\x00")
    answer = await subject.run("Tell me about the sea.", 12, full=True, stop=almost)
    assert answer.end.reason == "length"
    assert answer.text == plain.text


@every
async def test_a_stop_id_ends_the_answer_and_is_counted(subject):
    plain = await subject.run("Tell me about the sea.", 20, full=True)
    wanted = plain.ids[9]
    answer = await subject.run("Tell me about the sea.", 20, full=True, stop_ids=(wanted,))
    assert answer.end.reason == "stop"
    assert answer.ids == plain.ids[: plain.ids.index(wanted) + 1]
    assert answer.text == await subject.engine.tokenizer.decode(answer.ids[:-1])


# ---------------------------------------------------------------- 6: cancel


@every
async def test_cancel_while_decoding_wakes_the_reader_and_frees_the_engine(subject):
    request = await subject.ask("Write a very long story.", 400, full=True)
    stream = subject.engine.submit(request)
    seen = await until(stream, Delta)
    assert subject.engine.cancel(request.id)
    assert not subject.engine.cancel(request.id)
    answer = Answer(request, seen + await asyncio.wait_for(rest(stream), 5))
    answer.check()
    assert answer.end.reason == "cancelled"
    assert answer.end.usage.completion < 400
    await settled(subject.engine)
    await one_token(subject)
    assert not subject.engine.cancel(request.id)


@llamas
async def test_cancel_while_prefilling(subject):
    prompt = await long_prompt(subject, 450)
    request = await subject.ask("", 10, prompt=prompt)
    stream = subject.engine.submit(request)
    await until(stream, Prefilled)
    subject.engine.cancel(request.id)
    answer = await asyncio.wait_for(rest(stream), 5)
    assert answer[-1].reason == "cancelled"
    assert answer[-1].usage.completion == 0
    await one_token(subject)


@every
async def test_cancel_while_queued_and_before_reading(subject):
    requests = [await subject.ask("Go on and on.", 400, full=True) for _ in range(4)]
    streams = [subject.engine.submit(request) for request in requests]
    for stream in streams:
        await until(stream, Started)
    queued, unread = await subject.ask("hello", 3), await subject.ask("hello", 3)
    assert isinstance(subject.engine.fits(queued), NeedsCapacity)
    waiting = asyncio.ensure_future(collect(subject.engine, queued))
    late = subject.engine.submit(unread)
    await asyncio.sleep(0)
    assert subject.engine.stats().waiting == 2
    assert subject.engine.cancel(queued.id)
    assert subject.engine.cancel(unread.id)
    assert (await asyncio.wait_for(waiting, 5)).end.reason == "cancelled"
    assert [event.reason for event in await rest(late)] == ["cancelled"]
    for request, stream in zip(requests, streams, strict=True):
        subject.engine.cancel(request.id)
        assert (await rest(stream))[-1].reason == "cancelled"
    await settled(subject.engine)


@every
async def test_an_abandoned_reader_frees_its_seat(subject):
    stream = subject.engine.submit(await subject.ask("Go on.", 400, full=True))
    await until(stream, Delta)
    await stream.aclose()
    await settled(subject.engine)
    await one_token(subject)


@every
async def test_cancelling_one_leaves_the_others_alone(subject):
    alone = await subject.run("Tell me about the sea.", 24, full=True)
    victim = await subject.ask("Go on.", 400, full=True)
    stream = subject.engine.submit(victim)
    await until(stream, Delta)
    other = asyncio.ensure_future(subject.run("Tell me about the sea.", 24, full=True))
    await asyncio.sleep(0.02)
    subject.engine.cancel(victim.id)
    await rest(stream)
    answer = await other
    assert answer.end.reason == "length"
    await same_or_near_tie(subject, alone, answer)


@llamas
async def test_aborting_while_another_prefills_hangs_nobody(subject):
    for round_ in range(10):
        first = await subject.ask("", 4, full=True, prompt=(40 + round_, *await long_prompt(subject, 150)))
        second = await subject.ask("Go on.", 400, full=True)
        prefilling = subject.engine.submit(first)
        await until(prefilling, Prefilled)
        aborted = subject.engine.submit(second)
        await until(aborted, Started)
        await aborted.aclose()
        third = await asyncio.wait_for(subject.run("hello", 2, full=True), 30)
        assert third.end.usage.completion == 2
        assert (await asyncio.wait_for(rest(prefilling), 30))[-1].usage.completion == 4
    await settled(subject.engine)


# ---------------------------------------------------------------- 7, 8: requests that cannot run


@every
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"prompt": ()}, "prompt"),
        ({"prompt": (1 << 20,)}, "prompt"),
        ({"prompt": (-1,)}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"min_tokens": 9}, "min_tokens"),
        ({"stop": ("",)}, "stop"),
        ({"stop_ids": (1 << 20,)}, "stop_ids"),
        ({"sampling": Sampling(logit_bias={1 << 20: 1.0})}, "logit_bias"),
        ({"sampling": Sampling(temperature=-1.0)}, "temperature"),
        ({"sampling": Sampling(temperature=float("nan"))}, "temperature"),
        ({"sampling": Sampling(top_p=0.0)}, "top_p"),
        ({"top_logprobs": 21}, "logprobs"),
        ({"grammar": Grammar(kind="regex", schema="a+")}, "response_format"),
        ({"resume": Resume(ids=(1, 2, 3, 4, 5, 6), delivered_chars=0)}, "resume"),
    ],
    ids=str,
)
async def test_what_cannot_run_fails_by_name_and_the_engine_still_serves(subject, change, named):
    fields = {"id": f"bad{named}", "prompt": (5, 6), "max_tokens": 5, "sampling": GREEDY, **change}
    answer = await collect(subject.engine, type(await subject.ask("x", 1))(**fields))
    assert answer.events == [answer.end]
    assert answer.end.code == "bad_request"
    assert not answer.end.retryable
    assert named in answer.end.message
    await settled(subject.engine)


@every
async def test_an_id_in_use_is_refused_without_harm(subject):
    request = await subject.ask("Go on.", 30, full=True)
    stream = subject.engine.submit(request)
    seen = await until(stream, Started)
    twin = await collect(subject.engine, request)
    assert twin.end.code == "bad_request"
    answer = Answer(request, seen + await rest(stream))
    answer.check()
    assert answer.end.reason == "length"


@every
async def test_the_deadline_ends_a_request_wherever_it_is(subject):
    answer = await subject.run("Go on.", 400, full=True, deadline=0.0)
    assert answer.end.code == "deadline"
    assert not answer.end.retryable
    await settled(subject.engine)
    await one_token(subject)


@llamas
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^[a-z$"},
        {"type": "string", "pattern": "^(a$"},
        {"type": "string", "pattern": "^(?=x)a$"},
        {"type": "nonsense"},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a{2,1}$"}}},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        ["no", "object"],
    ],
    ids=str,
)
async def test_a_schema_that_cannot_hold_is_refused_not_dropped(subject, schema):
    answer = await subject.run("Hi", 5, grammar=Grammar(kind="json_schema", schema=schema))
    assert answer.end.code == "bad_request"
    assert "response_format" in answer.end.message
    assert answer.text == ""


# ---------------------------------------------------------------- 10, 11: one loop, many readers


@every
async def test_the_event_loop_stays_free_while_the_engine_works(subject):
    held: list[float] = []

    async def watch() -> None:
        while True:
            cpu, begun = time.thread_time(), time.monotonic()
            await asyncio.sleep(0.005)
            # Only time that this thread itself burnt counts: a busy machine may take the rest away.
            held.append(min(time.monotonic() - begun - 0.005, time.thread_time() - cpu))

    gc.collect()
    gc.disable()  # a full collection of a whole test run's objects takes longer than what is looked for
    watcher = asyncio.ensure_future(watch())
    try:
        await asyncio.gather(*(subject.run(f"Tell me about {n}.", 30, full=True) for n in range(4)))
    finally:
        watcher.cancel()
        gc.enable()
    # Four requests that block the loop would hold it four times, and more; one turn may be the machine's doing.
    assert sorted([0.0, 0.0, *held])[-2] < 0.05, sorted(held)[-4:]


@every
async def test_a_slow_reader_blocks_nobody(subject):
    slow = [subject.engine.submit(await subject.ask("Go on.", 20, full=True)) for _ in range(3)]
    for stream in slow:
        await until(stream, Delta)
    for _ in range(3):
        await one_token(subject)
    for stream in slow:
        assert (await rest(stream))[-1].reason == "length"


# ---------------------------------------------------------------- 12, 13: nothing leaks


@every
async def test_user_text_cannot_become_a_control_token(subject):
    capabilities = subject.engine.capabilities()
    control = {(await subject.engine.tokenizer.encode(text, special=True))[0] for text in capabilities.control_tokens}
    harmless = await subject.chat("nothing special")
    attack = "x".join(capabilities.control_tokens)
    attacked = await subject.chat(attack)
    assert sum(n in control for n in attacked) == sum(n in control for n in harmless)
    assert attack in await subject.engine.tokenizer.decode(attacked)
    assert not control & set(await subject.engine.tokenizer.encode(attack, special=False))


@llamas
async def test_settings_never_leak_into_the_next_request(subject):
    before = await subject.run("Tell me about the sea.", 12, full=True, tenant="a")
    ban = {before.ids[0]: -100.0}
    wild = Sampling(temperature=2.0, top_p=0.5, top_k=3, min_p=0.3, presence_penalty=2.0, repetition_penalty=1.5, logit_bias=ban)  # fmt: skip
    other = await subject.run("Tell me about the sea.", 12, full=True, sampling=wild, seed=1, stop=("e",), tenant="b")
    assert other.ids[0] != before.ids[0]
    for tenant in ("c", "d", "e"):
        after = await subject.run("Tell me about the sea.", 12, full=True, tenant=tenant)
        assert after.ids == before.ids


# ---------------------------------------------------------------- 5: the same answer, drafted or not


async def gap_at(subject: Subject, prefix: tuple[int, ...]) -> float:
    """Nats between the two best tokens after `prefix`."""
    answer = await subject.run("", 1, prompt=prefix, top_logprobs=2, full=True, tenant="ties")
    best = answer.logprobs[0].top
    return best[0].logprob - best[1].logprob


async def same_or_near_tie(subject: Subject, one: Answer, other: Answer) -> None:
    """Equal ids, or the first difference stands at a near tie (docs/engines.md)."""
    where = next((n for n, pair in enumerate(zip(one.ids, other.ids, strict=False)) if pair[0] != pair[1]), None)
    if where is None:
        assert one.ids[: len(other.ids)] == other.ids[: len(one.ids)]
        return
    assert subject.llama
    assert await gap_at(subject, one.request.prompt + one.ids[:where]) < 0.3


@llamas
@pytest.mark.parametrize("text", [QUOTE, "Why is the sky blue?"])
async def test_greedy_answers_are_those_of_the_undrafted_model(subject, text):
    """The plain lane (any request for logprobs) never drafts: it is the reference inside the same engine."""
    plain = await subject.run(text, 48, full=True, top_logprobs=0)
    assert plain.end.usage.proposed == 0
    drafted = await subject.run(text, 48, full=True)
    await same_or_near_tie(subject, plain, drafted)


@llamas
async def test_drafting_really_happens(subject):
    answer = await subject.run(QUOTE, 40, full=True)
    usage = answer.end.usage
    assert (usage.accepted > 0) == (subject.name != "llama-none")
    assert (usage.proposed > 0) == (subject.name != "llama-none")
    assert subject.engine.stats().draft.accepted >= usage.accepted


@every
async def test_a_seed_repeats_an_answer(subject):
    """Alone on the engine and without a reused prefix, since rounding depends on the batch's shape."""
    hot = Sampling(temperature=1.0)
    runs = [
        await subject.run("Tell me a story.", 24, full=True, sampling=hot, seed=7, tenant=f"s{n}") for n in range(3)
    ]
    assert len({run.ids for run in runs}) == 1
    others = [
        await subject.run("Tell me a story.", 24, full=True, sampling=hot, seed=n, tenant=f"o{n}") for n in range(3)
    ]
    assert (len({run.ids for run in others}) > 1) == subject.llama


# ---------------------------------------------------------------- resume


@every
@pytest.mark.parametrize("cut", [1, 9, 23])
async def test_a_resumed_answer_goes_on_where_it_was_cut(subject, cut):
    whole = await subject.run("Tell me about the sea.", 24, full=True)
    head = whole.deltas[:cut]
    ids = tuple(number for delta in head for number in delta.ids)
    told = "".join(delta.text for delta in head)
    for delivered in (len(told), max(0, len(told) - 3)):
        resume = Resume(ids=ids, delivered_chars=delivered)
        more = await subject.run("Tell me about the sea.", 24, full=True, resume=resume)
        assert more.end.reason == "length"
        assert more.end.usage.completion == 24
        assert more.end.usage.prompt == len(whole.request.prompt)
        tail = Answer(whole.request, [Delta("", ids), *more.events])
        await same_or_near_tie(subject, whole, tail)
        if tail.ids == whole.ids:
            assert told[:delivered] + more.text == whole.text


@every
async def test_a_resume_that_is_complete_generates_nothing(subject):
    whole = await subject.run("Tell me about the sea.", 10, full=True)
    resume = Resume(ids=whole.ids, delivered_chars=4)
    more = await subject.run("Tell me about the sea.", 10, full=True, resume=resume)
    assert more.ids == ()
    assert more.text == whole.text[4:]
    assert more.end.reason == "length"


# ---------------------------------------------------------------- logprobs, grammar


@llamas
async def test_logprobs_come_with_every_token(subject):
    answer = await subject.run("Say hello.", 8, full=True, top_logprobs=3)
    assert [one.id for one in answer.logprobs] == list(answer.ids)
    assert b"".join(one.bytes for one in answer.logprobs).decode() == answer.text
    for one in answer.logprobs:
        assert len(one.top) == 3
        assert one.top[0].logprob >= one.top[1].logprob
        assert one.logprob <= 0


@llamas
async def test_a_schema_holds(subject):
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "size": {"type": "integer", "maximum": 99}},
        "required": ["city", "size"],
        "additionalProperties": False,
    }
    answer = await subject.run("Describe Paris as JSON.", 100, grammar=Grammar(kind="json_schema", schema=schema))
    assert answer.end.reason == "stop"
    assert set(json.loads(answer.text)) == {"city", "size"}


# ---------------------------------------------------------------- 17: the prefix cache


async def long_prompt(subject: Subject, tokens: int) -> tuple[int, ...]:
    text = " ".join(f"item {n} is number {n * 7919 % 1000}." for n in range(tokens // 4))
    return tuple(await subject.engine.tokenizer.encode(text, special=False))[:tokens]


@llamas
async def test_a_repeated_prefix_is_found_again_by_its_own_tenant_only(subject):
    prompt = await long_prompt(subject, 100)
    first = await subject.run("", 4, full=True, prompt=prompt, tenant="alice")
    assert first.end.usage.cached == 0
    again = await subject.run("", 4, full=True, prompt=prompt, tenant="alice")
    assert again.end.usage.cached >= len(prompt) // 2
    assert again.ids == first.ids
    for other in ("bob", "carol", "dave", "erin", "alicf"):
        assert (await subject.run("", 4, full=True, prompt=prompt, tenant=other)).end.usage.cached == 0


@llamas
async def test_an_edited_turn_never_meets_the_old_one(subject):
    prompt = await long_prompt(subject, 120)
    edited = prompt[:60] + tuple(reversed(prompt[60:]))
    reference = await subject.run("", 6, full=True, prompt=edited, tenant="clean")
    await subject.run("", 6, full=True, prompt=prompt, tenant="editor")
    answer = await subject.run("", 6, full=True, prompt=edited, tenant="editor")
    assert answer.end.usage.cached <= 60
    await same_or_near_tie(subject, reference, answer)


# ---------------------------------------------------------------- 1, 16: unload, death


@pytest.mark.parametrize("name", ["null-hash", "llama-ngram"])
async def test_unload_ends_everybody_retryably_and_load_may_follow(name):
    engine = create(name)
    with pytest.raises(Exception, match="no model"):
        engine.capabilities()
    first = await engine.load(spec_of(name), lambda _fraction, _what: None)
    subject = Subject(name, engine)
    requests = [await subject.ask("Go on.", 400, full=True) for _ in range(5)]
    running = [asyncio.ensure_future(collect(engine, request)) for request in requests]
    await asyncio.sleep(0.3)
    assert engine.stats().waiting == 1
    await asyncio.wait_for(engine.unload(), 10)
    ends = [answer.end for answer in await asyncio.gather(*running)]
    assert [(end.code, end.retryable) for end in ends] == [("unloaded", True)] * 5
    assert not engine.healthy()
    late = await collect(engine, requests[0])
    assert (late.end.code, late.end.retryable) == ("unloaded", True)
    assert await engine.load(spec_of(name), lambda _fraction, _what: None) == first
    await one_token(subject)
    await engine.unload()


async def test_loading_again_and_again_needs_no_more_memory():
    engine = create("llama-none")
    sizes = []
    for _ in range(7):
        await engine.load(spec_of("llama-none"), lambda _fraction, _what: None)
        await one_token(Subject("llama-none", engine))
        await engine.unload()
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        sizes.append(int(pages) * os.sysconf("SC_PAGESIZE"))
    # The first rounds fill the allocator's pools, as large as they will ever be; a model that stays would add 300 MB
    # with every further one.
    assert sizes[-1] - sizes[3] < 60 << 20, [size >> 20 for size in sizes]


async def test_a_dead_server_fails_its_requests_retryably_and_shows_in_health():
    engine = create("llama-none")
    await engine.load(spec_of("llama-none"), lambda _fraction, _what: None)
    subject = Subject("llama-none", engine)
    request, next_ = await subject.ask("Go on.", 400, full=True), await subject.ask("Go on.", 3)
    stream = engine.submit(request)
    await until(stream, Delta)
    assert engine.healthy()
    await asyncio.wait_for(engine._loaded.main.server.stop(), 15)
    ends = [(await rest(stream))[-1], (await collect(engine, next_)).end]
    assert all(isinstance(end, Failed) and end.code == "engine_fault" and end.retryable for end in ends)
    assert not engine.healthy()
    await engine.unload()


async def test_a_draft_with_another_vocabulary_is_refused(tmp_path):
    other = tmp_path / "other.gguf"
    write_gguf(other, ["a", "b"], [1, 1])
    engine = create("llama-none")
    spec = spec_of("llama-none")
    with pytest.raises(Exception, match="another vocabulary"):
        await engine.load(
            msgspec.structs.replace(spec, draft=DraftSpec(kind="model", path=str(other))), lambda _f, _w: None
        )
    assert not engine.healthy()
