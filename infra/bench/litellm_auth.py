"""Read by LiteLLM's proxy, in its own environment: one key, known by its hash, with limits that are never reached."""

import hashlib
import os

from fastapi import HTTPException, Request
from litellm.proxy._types import UserAPIKeyAuth

TENANTS = {hashlib.sha256(os.environ["EVENFLOW_BENCH_KEY"].encode()).hexdigest(): "demo"}
REQUESTS_PER_MINUTE = 10_000_000
TOKENS_PER_MINUTE = 2_000_000_000
STREAMS = 4096


async def user_api_key_auth(request: Request, api_key: str) -> UserAPIKeyAuth:
    """Whose key this is. Raises HTTPException 401."""
    del request
    digest = hashlib.sha256(api_key.encode()).hexdigest()
    tenant = TENANTS.get(digest)
    if tenant is None:
        raise HTTPException(status_code=401, detail="unknown key")
    return UserAPIKeyAuth(
        api_key=digest,
        team_id=tenant,
        rpm_limit=REQUESTS_PER_MINUTE,
        tpm_limit=TOKENS_PER_MINUTE,
        max_parallel_requests=STREAMS,
    )
