"""Shares of context parallelism, and attention to the tokens of the other members."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.runtime.communication.groups import Group
from meshwave.engine.runtime.modules.attention_product import AttentionRule, attention_mask
from meshwave.engine.runtime.modules.context_share import ContextShare, balanced_chunks

degrees = st.integers(1, 8)


def shares(sequence: int, degree: int, size: int) -> list[ContextShare]:
    """Return the shares of the members of a group of ``size`` with the chunks of ``degree`` devices."""
    chunks = balanced_chunks(sequence, degree)
    return [ContextShare(Group(tuple(range(size)), member), chunks) for member in range(size)]


@given(degrees, st.integers(1, 5))
def test_every_device_holds_a_chunk_and_its_mirror_image(degree: int, length: int) -> None:
    sequence = 2 * degree * length
    for member, share in enumerate(shares(sequence, degree, degree)):
        first, second = share.chunks_of(member)
        assert first == range(member * length, (member + 1) * length)
        assert second == range(sequence - first.stop, sequence - first.start)


@given(degrees, st.integers(1, 5))
def test_causal_attention_has_equal_work_on_all_devices(degree: int, length: int) -> None:
    work = {
        sum(token + 1 for chunk in share.chunks_of(member) for token in chunk)
        for member, share in enumerate(shares(2 * degree * length, degree, degree))
    }
    assert len(work) == 1


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_a_smaller_group_holds_the_shares_of_consecutive_members_of_a_larger_one(
    size: int, ratio: int, length: int
) -> None:
    degree = size * ratio
    large, small = (shares(2 * degree * length, degree, members) for members in (degree, size))
    for member, share in enumerate(small):
        parts = [large[number].chunks_of(number) for number in range(member * ratio, (member + 1) * ratio)]
        assert [*share.chunks_of(member)] == [*chain(*parts)]


@given(degrees, st.integers(1, 4))
def test_joined_shares_are_restored_to_the_order_of_the_sequence(degree: int, length: int) -> None:
    whole = torch.arange(2 * degree * length)
    members = shares(len(whole), degree, degree)
    joined = torch.cat([share.select_own(whole, 0) for share in members])
    assert torch.equal(members[0].restore_order(joined, 0), whole)


@given(st.booleans(), st.none() | st.integers(1, 12), st.integers(0, 8), st.integers(1, 6))
def test_the_visible_keys_are_those_that_the_mask_of_the_sequence_shows(
    causal: bool, window: int | None, start: int, length: int
) -> None:
    rule, sequence = AttentionRule(causal, window), 14
    queries = range(start, start + length)
    mask = attention_mask(rule, length, sequence, start, torch.device("cpu"))
    seen = torch.ones(length, sequence, dtype=torch.bool) if mask is None else mask
    keys = rule.visible_keys(queries, sequence)
    assert [*keys] == seen.any(0).nonzero().flatten().tolist()


@pytest.mark.parametrize(("processes", "sequence"), [(3, 18)])
def test_attention_and_its_gradients_equal_those_of_whole_sequences(processes: int, sequence: int, crew: Any) -> None:
    name = "tests.engine.runtime.modules.context_attention_processes:compare_with_whole_sequences"
    for found in crew.call(name, processes, sequence):
        assert isinstance(found, list), found
        assert [case for case, difference in found if difference > 1e-12] == []
        assert len(found) == 60
