"""The head of the audit log in the gateway's own log: once whenever it moves, loudly when it shrinks."""

import pytest
from structlog.testing import capture_logs

from gateway.services.audit_watch import AuditWatch
from gateway.store.audit import Head
from shared.errors import StoreError

A, B, C = (Head(number, seal * 32) for number, seal in ((1, "aa"), (2, "bb"), (2, "cc")))


class Heads:
    def __init__(self, *heads):
        self.heads = list(heads)

    async def head(self):
        head = self.heads.pop(0)
        if head is None:
            raise StoreError("away")
        return head


@pytest.mark.parametrize(
    ("heads", "said"),
    [
        ((A, A, B), [("audit_head", f"1:{'aa' * 32}"), ("audit_head", f"2:{'bb' * 32}")]),
        ((B, A), [("audit_head", f"2:{'bb' * 32}"), ("audit_cut", f"1:{'aa' * 32}")]),
        ((B, C), [("audit_head", f"2:{'bb' * 32}"), ("audit_cut", f"2:{'cc' * 32}")]),
        ((None, None, A, None), [("audit_unread", None), ("audit_head", f"1:{'aa' * 32}"), ("audit_unread", None)]),
    ],
)
async def test_what_is_logged(heads, said):
    watch = AuditWatch(Heads(*heads))
    with capture_logs() as logs:
        for _ in heads:
            await watch.look()
    assert [(entry["event"], entry.get("head") or entry.get("now")) for entry in logs] == said
    assert all((entry["log_level"] == "error") == (entry["event"] == "audit_cut") for entry in logs)
