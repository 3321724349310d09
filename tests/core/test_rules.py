import pytest

from gateway.core.networks import parsed
from gateway.core.rules import EVERYTHING, compile_rules


@pytest.mark.parametrize(
    ("models", "model", "allowed"),
    [
        (None, "anything", True),
        (("a",), "a", True),
        (("a",), "ab", False),
        (("a",), "A", False),
        (("a", "llama-*"), "llama-3", True),
        (("llama-*",), "llama-", True),
        (("llama-*",), "llama", False),
        (("llama-*",), "my-llama-3", False),
        (("llama-*",), "llama-*", True),
        (("*",), "anything", True),
        (("org/m",), "org/m", True),
        ((), "a", False),
    ],
)
def test_models(models, model, allowed):
    assert compile_rules((), models, None).allows(model) is allowed


def test_networks_and_scopes():
    rules = compile_rules(["usage"], None, ["10.0.0.0/8", "2001:db8::/32"])
    assert rules.scopes == {"usage"}
    assert parsed("10.1.2.3") in rules.networks
    assert parsed("2001:db8::9") in rules.networks
    assert parsed("192.0.2.1") not in rules.networks
    assert compile_rules((), None, None).networks is None
    assert EVERYTHING.allows("x")
    with pytest.raises(ValueError, match="x"):
        compile_rules((), None, ["x"])
