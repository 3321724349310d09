"""What is not served: the message names it, within bounds."""

import httpx
import pytest

from gateway.app import _app


@pytest.mark.parametrize(
    ("path", "told"), [("/v1/embeddings?a=b", "/v1/embeddings"), ("/" + "x" * 5000, "/" + "x" * 199), ("/%22é", '/"é')]
)
async def test_a_path_that_is_not_served_is_named(path, told):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(_app([])), base_url="http://door") as client:
        answer = await client.post(path)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (404, "false")
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("unknown_url", "invalid_request_error")
    assert error["message"] == f"Unknown request URL: POST {told}."
