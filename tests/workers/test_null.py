"""The null engine's own promises, besides the contract."""

import asyncio
import re
import time

import pytest

from shared.errors import EngineError
from shared.wire import Resume
from workers.engines.base import Delta, EngineRequest, EngineSpec
from workers.engines.null import ByteTokenizer, NullEngine, hash_tokens


async def loaded(**options):
    engine = NullEngine()
    await engine.load(EngineSpec(model="null", version="1", slots=8, options=options), lambda _fraction, _what: None)
    return engine


async def run(engine, name="r", prompt=(1, 2), tokens=64, **more):
    request = EngineRequest(id=name, prompt=prompt, max_tokens=tokens, **more)
    return [event async for event in engine.submit(request)]


def text(events):
    return "".join(event.text for event in events if isinstance(event, Delta))


async def test_script_is_one_token_a_chunk_and_ends_by_itself():
    events = await run(await loaded(mode="script", tokens=50))
    deltas = [event for event in events if isinstance(event, Delta)]
    assert len(deltas) == 50
    assert all(len(delta.ids) == 1 for delta in deltas)
    assert text(events).startswith("The quick brown fox")
    assert (events[-1].reason, events[-1].usage.completion) == ("stop", 50)


def test_hash_depends_on_every_token_before():
    def take(prefix):
        source = hash_tokens(prefix)
        return tuple(next(source) for _ in range(30))

    whole = take((1, 2, 3))
    assert whole == take((1, 2, 3))
    assert len({whole, take((2, 1, 3)), take((1, 2)), take((1, 2, 3, 0))}) == 4
    assert take((1, 2, 3, *whole[:11]))[:19] == whole[11:]
    assert all(32 <= token < 127 for token in whole)


async def test_hash_resumes_byte_for_byte_on_another_engine():
    whole = await run(await loaded(mode="hash", tokens=64))
    ids = tuple(n for event in whole if isinstance(event, Delta) for n in event.ids)
    other = await loaded(mode="hash", tokens=64)
    for cut in (0, 1, 40, 64):
        more = await run(other, resume=Resume(ids=ids[:cut], delivered_chars=max(0, cut - 2)))
        assert text(whole)[: max(0, cut - 2)] + text(more) == text(whole)
        assert more[-1].usage.completion == 64


async def test_pace_stamps_every_chunk_with_the_clock_and_keeps_its_rhythm():
    engine = await loaded(mode="pace", tokens=6, rate=200.0)
    before = time.monotonic_ns()
    events = await run(engine)
    stamps = [int(n) for n in re.fullmatch(r"(?:@(\d+)@ ){6}", text(events)) and re.findall(r"@(\d+)@ ", text(events))]
    assert stamps == sorted(stamps)
    # The first one comes at the next step; due times are fixed, so that a late chunk does not delay those after it.
    assert all(stamp >= before + n * 5_000_000 - 1_000_000 for n, stamp in enumerate(stamps))
    assert stamps[-1] <= time.monotonic_ns()


async def test_one_timer_serves_all_paced_streams():
    engine = await loaded(mode="pace", tokens=5, rate=500.0)
    answers = await asyncio.gather(*(run(engine, name=f"r{n}") for n in range(8)))
    assert all(answer[-1].usage.completion == 5 for answer in answers)
    assert engine._wheel._due == []


async def test_pace_cannot_resume_since_its_text_is_the_time():
    events = await run(await loaded(mode="pace"), resume=Resume(ids=(64,), delivered_chars=0))
    assert events[-1].code == "bad_request"


@pytest.mark.parametrize("options", [{"mode": "other"}, {"rate": 0.0}, {"tokens": 0}, {"rate": float("nan")}], ids=str)
async def test_impossible_options_are_refused(options):
    with pytest.raises(EngineError, match="null engine"):
        await loaded(**options)


async def test_bytes_and_control_tokens():
    tokenizer = ByteTokenizer()
    assert await tokenizer.encode("a<|eos|>é<|bos|>", special=True) == [97, 257, 0xC3, 0xA9, 256]
    assert await tokenizer.encode("<|eos|>", special=False) == list(b"<|eos|>")
    assert await tokenizer.decode((97, 257, 0xC3, 0xA9)) == "a<|eos|>é"


async def test_paced_streams_share_their_steps_whenever_they_came():
    engine, steps = await loaded(mode="pace", rate=100, tokens=20), []

    async def follow(name):
        request = EngineRequest(id=name, prompt=(1,), max_tokens=20)
        async for event in engine.submit(request):
            if isinstance(event, Delta):
                steps.append(name)
                if len(steps) == 3:
                    others.append(asyncio.create_task(follow("late")))

    others = []
    await follow("early")
    await others[0]
    both = steps[steps.index("late") : len(steps) - steps[::-1].index("early")]
    turns = [both[at] != both[at + 1] for at in range(len(both) - 1)]
    assert len(both) > 10
    assert all(turns), steps
