"""Where a site's noise comes from, and that no attempt at a question meets the draw of another."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sordino.deploy.session import Session, source_of
from sordino.privacy.noise import Secure, Seeded


@pytest.mark.parametrize(("seeded", "kind"), [(False, Secure), (True, Seeded)])
def test_noise_is_the_operating_systems_unless_no_epsilon_is_claimed(seeded: bool, kind: type) -> None:
    terms: Any = SimpleNamespace(seeded=seeded, identity="00" * 32, experiment=SimpleNamespace(seed=3))
    assert type(source_of(terms, b"secret")) is kind


def test_every_attempt_at_a_question_has_a_number_of_its_own() -> None:
    asked: list[int] = []
    clients = SimpleNamespace(answer=lambda question, state: asked.append(question.number))
    session: Any = Session("run", None, 0, b"", clients, {})  # type: ignore[arg-type]
    for number, attempt in ((7, 0), (7, 1), (7, 2), (8, 0), (8, 1)):
        ask = SimpleNamespace(round=1, attempt=attempt)
        work: Any = SimpleNamespace(number=number, ask=ask, step="local", message={})
        session.answered(work, {"model": torch.zeros(2)})
    assert len(set(asked)) == len(asked)
    assert asked[0] == 7  # as in the simulator, whose noise it meets where that comes from the seed
