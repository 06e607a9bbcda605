"""Where a site's noise comes from, and that no attempt at a question meets the draw of another."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import SITE_LIMITS

from sordino.data.dataset import Dealt, FederatedData, Split
from sordino.data.schema import Column, Label, NumberColumn, Schema
from sordino.deploy.protocol import keys
from sordino.deploy.site.data import encode_records, read_records
from sordino.deploy.site.rules import RefusedError, Rules, SitePolicy
from sordino.deploy.site.session import Session, noise_source
from sordino.deploy.terms import terms_of
from sordino.experiment.config import Experiment
from sordino.federation.message import Each
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.noise import Secure, Seeded
from sordino.tasks import Classification


@pytest.mark.parametrize(("seeded", "kind"), [(False, Secure), (True, Seeded)])
def test_noise_is_the_operating_systems_unless_no_epsilon_is_claimed(seeded: bool, kind: type) -> None:
    terms: Any = SimpleNamespace(seeded=seeded, identity="00" * 32, experiment=SimpleNamespace(seed=3))
    assert type(noise_source(terms, b"secret")) is kind


def test_every_attempt_at_a_question_has_a_number_of_its_own() -> None:
    asked: list[int] = []
    clients = SimpleNamespace(answer=lambda question, state: asked.append(question.number))
    session: Any = Session("run", None, 0, b"", clients, {})  # type: ignore[arg-type]
    for number, attempt in ((7, 0), (7, 1), (7, 2), (8, 0), (8, 1)):
        id = SimpleNamespace(round=1, attempt=attempt)
        question: Any = SimpleNamespace(number=number, id=id, step="local", message={})
        session.answer(question, {"model": torch.zeros(2)})
    assert len(set(asked)) == len(asked)
    assert asked[0] == 7  # as in the simulator, whose noise it meets where that comes from the seed


def at_a_site(**changes: Any) -> Session:
    """The part of the first of ten sites in a small experiment."""
    given = {"clients": 10, "shape": [4], "labels": ["no", "yes"], "records_each": 100, "rounds": 2, "epsilon": 4.0}
    terms = terms_of(Experiment.make(given, {"method": "dp-fedavg", "model": "logistic", **changes}))
    train = Split(torch.randn(100, 4), torch.arange(100) % 2, *(np.full(10, one) for one in (0, 100)))
    data = FederatedData("made", Dealt(["site"] * 10, train, train), Classification.numbered(2), (4,), "")
    return Session.of("run", terms, 0, bytes(32), data, b"secret")


def test_a_site_looks_for_the_class_that_the_schema_names(tmp_path: Path) -> None:
    """Its recall would be that of another class, in which the simulation is not interested."""
    columns: dict[str, Column] = {
        "age": NumberColumn(range=(0, 99)),
        "state": Label(values=("ill", "well"), positive="ill"),
    }
    given = {"clients": 3, "table": Schema(columns=columns).document(), "rounds": 2, "epsilon": 4.0}
    terms = terms_of(Experiment.make(given, {"method": "dp-fedavg"}))
    np.savez(tmp_path / "site.npz", x=np.zeros((6, 1)), y=np.array(["ill", "well"] * 3))
    rules = Rules(name="site", data=Path("site.npz"), **SITE_LIMITS)
    data = encode_records(read_records(tmp_path, rules), terms, rules, b"secret")
    assert data.task.positive_name == "ill"
    assert data.task is terms.learner.task


@pytest.mark.parametrize("protect_from", ["outsider", "server"])
def test_what_is_summed_is_asked_of_all_sites_alike(protect_from: str) -> None:
    """A threshold of one site's own shows in the noise of the sum; where nothing is summed, each may have its own."""
    session = at_a_site(protect_from=protect_from)
    policy = SitePolicy(Rules(name="site", data=Path("records.csv"), **SITE_LIMITS), None)
    message = {"global": session.terms.initial, "clip": Each(torch.full((10,), 0.5))}
    question: Any = SimpleNamespace(step="local", id=SimpleNamespace(round=0), message=message)
    if protect_from == "server":
        session.check_question(question, policy)
        return
    with pytest.raises(RefusedError, match="all sites must get the same question"):
        session.check_question(question, policy)


def test_all_that_a_run_may_cost_records_is_reserved() -> None:
    session = at_a_site(method="dp-fedavg-record", delta=1e-6)
    assert session.reservation().content == {"run": "run", "epsilon": 4.0, "delta": 1e-6}
    seeded = at_a_site(method="dp-fedavg-record", delta=1e-6, noise="integers")
    assert seeded.reservation().content["epsilon"] == math.inf


def test_all_that_each_observer_may_learn_of_records_is_reserved() -> None:
    """Two turns of the whole batch: the sum holds ten shares of noise, of which a site knows one, the server nine."""
    session = at_a_site(method="dp-fedsgd", delta=1e-6, set={"counts": 0})
    z, reserved = session.terms.allowance.of_records.shared.multiplier, session.reservation().content
    shares = {"outsider": 10, "peer": 9, "server": 1}
    by_hand = {view: epsilon_of(math.sqrt(2 * 10 / count) / z, 1e-6) for view, count in shares.items()}
    assert reserved["views"] == pytest.approx(by_hand, rel=1e-5)  # rounding to whole numbers costs a little
    assert reserved["views"]["outsider"] == pytest.approx(4.0, rel=1e-6)
    assert reserved["epsilon"] == reserved["views"]["server"]


def test_a_signature_holds_for_one_purpose_and_for_the_parts_as_they_were() -> None:
    private = keys.new_identity()
    identity, signature = keys.public_identity(private), keys.sign(private, "head", b"one", b"two")
    assert keys.is_signed(identity, signature, "head", b"one", b"two")
    for purpose, parts in (("hello", (b"one", b"two")), ("head", (b"onet", b"wo")), ("head", (b"one",))):
        assert not keys.is_signed(identity, signature, purpose, *parts)
    assert not keys.is_signed(keys.public_identity(keys.new_identity()), signature, "head", b"one", b"two")
