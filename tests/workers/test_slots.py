"""Which slot a request gets, and whom it may inherit from."""

from hypothesis import given
from hypothesis import strategies as st

from workers.engines.slots import PrefixSlots, common


def use(table, tenant, prompt, *, share=True):
    lease = table.take(tenant, prompt, share=share)
    lease.release()
    lease.remember(tuple(prompt))
    return lease.slot.index, lease.reuse


def test_a_tenant_comes_back_to_its_longest_prefix():
    table = PrefixSlots(3)
    assert use(table, "a", (1, 2, 3, 4)) == (0, False)
    assert use(table, "a", (9, 8, 7, 6)) == (1, False)
    assert use(table, "a", (1, 2, 3, 4, 5)) == (0, True)
    assert use(table, "a", (9, 8, 7, 6, 5)) == (1, True)


def test_a_short_common_beginning_does_not_push_a_conversation_out():
    table = PrefixSlots(2)
    use(table, "a", (1, 2, 3, 4, 5, 6))
    assert use(table, "a", (1, 7, 7, 7, 7, 7)) == (1, False)


def test_another_tenant_gets_the_slot_cleared():
    table = PrefixSlots(1)
    use(table, "a", (1, 2, 3))
    assert use(table, "b", (1, 2, 3)) == (0, False)
    assert use(table, "a", (1, 2, 3)) == (0, False)


def test_without_sharing_nothing_is_reused():
    table = PrefixSlots(1)
    use(table, "a", (1, 2, 3))
    assert use(table, "a", (1, 2, 3), share=False) == (0, False)


def test_the_slot_used_longest_ago_is_overwritten():
    table = PrefixSlots(2)
    use(table, "a", (1,))
    use(table, "b", (2,))
    assert use(table, "c", (3,))[0] == 0
    assert use(table, "d", (4,))[0] == 1


def test_busy_slots_are_not_given_twice_and_late_memories_do_not_count():
    table = PrefixSlots(1)
    first = table.take("a", (1, 2))
    assert table.take("a", (1, 2)) is None
    first.release()
    second = table.take("b", (3, 4))
    first.remember((1, 2))
    first.release()
    assert second.slot.tokens == ()
    assert second.slot.busy
    second.release()
    second.remember((3, 4))
    assert table.held == 2


steps = st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 2), min_size=1, max_size=6)), max_size=40)


@given(steps=steps)
def test_reuse_is_only_ever_granted_to_the_last_tenant(steps):
    table, last = PrefixSlots(2), {}
    for tenant, prompt in steps:
        index, reuse = use(table, tenant, prompt)
        assert reuse == (last.get(index) == tenant)
        last[index] = tenant


@given(left=st.lists(st.integers(0, 1)), right=st.lists(st.integers(0, 1)))
def test_common(left, right):
    size = common(left, right)
    assert left[:size] == right[:size]
    assert left[: size + 1] != right[: size + 1] or size == len(left) == len(right)
