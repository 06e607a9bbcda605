"""What clients remember is fetched when it is looked at, and is a dictionary in every other way."""

import pytest
import torch
from torch import Tensor

from sordino.federation.execution import Recalled

VALUES = {"model": torch.ones(2), "extra": torch.zeros(1)}


def recalled() -> tuple[Recalled, list[str]]:
    fetched: list[str] = []

    def fetch(name: str) -> Tensor:
        fetched.append(name)
        return VALUES[name]

    return Recalled(VALUES, fetch), fetched


def test_a_value_is_fetched_once_and_alone() -> None:
    me, fetched = recalled()
    assert fetched == []
    assert me["model"] is me["model"]
    assert fetched == ["model"]
    with pytest.raises(KeyError, match="other"):
        me["other"]


def given(**values: Tensor) -> dict[str, Tensor]:
    return values


@pytest.mark.parametrize(
    "use",
    [
        dict,
        lambda me: {**me},
        lambda me: me | {},
        lambda me: {} | me,
        lambda me: me.copy(),
        lambda me: dict(me.items()),
        lambda me: dict(zip(me.keys(), me.values(), strict=True)),
        lambda me: {name: me[name] for name in me},
        lambda me: given(**me),
        lambda me: {name: me.get(name) for name in VALUES},
        lambda me: {name: me.pop(name) for name in VALUES},
    ],
)
def test_it_is_a_dictionary_in_every_other_way(use: object) -> None:
    me, fetched = recalled()
    assert use(me) == VALUES  # type: ignore[operator]
    assert sorted(fetched) == sorted(VALUES)


def test_it_knows_its_names_and_takes_new_values() -> None:
    assert len(recalled()[0]) == 2
    assert "extra" in recalled()[0]
    assert "other" not in recalled()[0]
    me, fetched = recalled()
    me["model"] = torch.zeros(3)
    assert me["model"].tolist() == [0.0] * 3
    assert list(me) == ["model", "extra"]
    assert me["model"].tolist() == [0.0] * 3
    assert fetched == ["extra"]
