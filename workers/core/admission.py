"""From a job to what the engine is asked, or to the reason why not. Pure."""

from shared.wire import Job, Nack, NackCode
from workers.engines.base import Capabilities, EngineRequest
from workers.engines.checks import refuse


class RefusedError(Exception):
    """This worker does not take the job; `nack` says why."""

    def __init__(self, nack: Nack) -> None:
        super().__init__(nack.message)
        self.nack = nack


def refused(wep: str, sid: int, code: NackCode, message: str, *, param: str = "", error_code: str = "") -> RefusedError:
    """The refusal of one job."""
    return RefusedError(Nack(wep=wep, sid=sid, code=code, message=message, param=param, error_code=error_code))


def too_large(wep: str, job: Job, prompt_tokens: int, limit: int, *, error_code: str = "") -> RefusedError:
    """The refusal of a prompt, or prompt + max_tokens, beyond `limit`.

    `error_code`: `at_least` if the count is a lower bound, `window` or `budget` if the limit is of the tenant's quotas.
    """
    return RefusedError(
        Nack(
            wep=wep,
            sid=job.sid,
            code="too_large",
            message="the prompt and its completion are longer than the context",
            prompt_tokens=prompt_tokens,
            limit=limit,
            error_code=error_code,
        )
    )


def _affordable(wep: str, job: Job, prompt: int, max_tokens: int) -> int:
    """As much of it as the tenant's quotas leave each choice, now that the prompt is counted. Raises RefusedError."""
    if job.window is not None and prompt + job.choices * (job.max_tokens or 1) > job.window:
        raise too_large(wep, job, prompt, job.window, error_code="window")
    if job.most_total is None:
        return max_tokens
    left = (job.most_total - prompt) // job.choices
    if left < 1:
        raise too_large(wep, job, prompt, job.most_total, error_code="budget")
    return min(max_tokens, left)


def engine_request(wep: str, job: Job, prompt: list[int], capabilities: Capabilities, left_s: float) -> EngineRequest:
    """The job in the engine's terms: `max_tokens` filled in with all that the context and the model allow.

    Raises RefusedError: too_large, with both counts in tokens, if prompt + max_tokens does not fit the context;
    bad_request, naming the field, for what no engine of these capabilities would run. Before the job is accepted, so
    that a stream, too, is refused by its status.
    """
    room = capabilities.context - len(prompt)
    max_tokens = min(room, capabilities.max_output) if job.max_tokens is None else job.max_tokens
    if job.most_output is not None:
        max_tokens = min(max_tokens, max(1, job.most_output))
    limit = capabilities.context if job.most_prompt is None else min(job.most_prompt, capabilities.context)
    if not 1 <= max_tokens <= room or len(prompt) > limit:
        raise too_large(wep, job, len(prompt), limit)
    max_tokens = _affordable(wep, job, len(prompt), max_tokens)
    request = EngineRequest(
        id=f"{job.gep}.{job.sid}",  # unique also when another gateway epoch counts from one again
        prompt=tuple(prompt),
        max_tokens=max_tokens,
        stop=job.stop,
        sampling=job.sampling,
        seed=job.seed,
        top_logprobs=job.logprobs,
        grammar=job.grammar,
        deadline=max(0.001, left_s),
        tenant=job.tenant,
        resume=job.resume,
    )
    if (problem := refuse(request, capabilities)) is not None:
        field, colon, _ = problem.message.partition(": ")
        raise refused(
            wep, job.sid, "bad_request", problem.message, param=field if colon and field.isidentifier() else ""
        )
    return request
