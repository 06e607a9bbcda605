"""Growing masks: how many, which, and that nothing is lost."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from sordino.learning.parameters import Layout
from sordino.parts.masks import body, grow_mask, schedule

LAYERS = [6, 4]


def test_the_largest_changes_become_personal() -> None:
    change = torch.tensor([0.1, -5.0, 0.3, 2.0, 0.0, 0.2, 7.0, 1.0, -3.0, 0.5])
    mask = grow_mask(torch.zeros(10), change, [2, 1], LAYERS)
    assert mask.nonzero().flatten().tolist() == [1, 3, 6]


@given(seed=st.integers(0, 500), share=st.floats(0.05, 0.95), ties=st.booleans())
def test_the_share_follows_the_schedule_and_only_grows(seed: int, share: float, ties: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    layers, rounds = [50, 7, 200], 9
    mask = torch.zeros(sum(layers))
    for done in range(1, rounds + 1):
        change = torch.randn(len(mask), generator=generator)
        if ties:
            change = change.round()
        before, mask = mask, grow_mask(mask, change, schedule(share, done, rounds, layers), layers)
        assert (mask >= before).all()
        counts = [int(part.sum()) for part in mask.split(layers)]
        assert counts == [int(share * size * done / rounds) for size in layers]


def test_of_equals_the_first_are_taken() -> None:
    assert grow_mask(torch.zeros(4), torch.ones(4), [2], [4]).tolist() == [1, 1, 0, 0]
    almost = torch.tensor([1.0, 1.0 + 1e-6, 1.0 - 1e-6, 1.0])
    assert grow_mask(torch.zeros(4), almost, [2], [4]).tolist() == [1, 1, 0, 0]


def test_the_last_layers_are_personal_and_the_first_tensor_never() -> None:
    layout = Layout(("0.weight", "0.bias", "2.weight", "4.weight", "4.bias"), ((3,), (1,), (2,), (2,), (1,)))
    shared = [int(body(layout, personal).sum()) for personal in (0, 1, 2, 3, 9)]
    assert shared == [9, 6, 4, 3, 3]
    assert body(layout, 2).tolist() == [1, 1, 1, 1, 0, 0, 0, 0, 0]
