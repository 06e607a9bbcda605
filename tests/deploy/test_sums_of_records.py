"""Sums of records' gradients at sites: who drops out, attempts that are paid for again, and refusals beforehand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import Federation, Recorder, federation, is_confirmed, kind, refused, with_ask
from safetensors.torch import load_file
from torch.nn import functional

from sordino.deploy.protocol import keys, wire
from sordino.deploy.protocol.carrier import Failure
from sordino.deploy.protocol.secure_sum import new_key, public_key
from sordino.deploy.site.check import check_experiment
from sordino.deploy.site.ledger import RUNS, SiteLedger
from sordino.deploy.site.requests import read_question
from sordino.deploy.site.status import status
from sordino.deploy.terms import terms_of
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.privacy.views import VIEWS

LOST = Failure("lost")
RECORDS, FEATURES = 40, 5
Answer = Callable[[], bytes]


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four clinics of as many records each, none of whose gradients is longer than one."""
    folder = tmp_path_factory.mktemp("clinics")
    random = np.random.default_rng(0)
    for name in ("east", "north", "south", "west"):
        x = random.uniform(-0.3, 0.3, (RECORDS + 10, FEATURES)).astype(np.float32)
        y = (x.sum(axis=1) > 0).astype(np.int64)
        np.savez(folder / f"{name}.npz", x=x[:RECORDS], y=y[:RECORDS], x_test=x[RECORDS:], y_test=y[RECORDS:])
    return folder


@pytest.fixture
def make(clinics: Path, tmp_path: Path) -> Iterator[Callable[..., Federation]]:
    """Makes a federation of these clinics."""
    opened = []

    def made(sites: int = 4, **changes: Any) -> Federation:
        keys: dict[str, Any] = {"data": str(clinics), "partition": None, "method": "dp-fedsgd", "model": "logistic"}
        keys |= {"rounds": 2, "epsilon": 4.0, "delta": 1e-3, **changes}
        found = federation(tmp_path / "one", sites, **keys)
        opened.append(found)
        return found.__enter__()

    yield made
    for one in opened:
        one.__exit__(None, None, None)


def charges(made: Federation, number: int) -> Counter[str]:
    """How often a site has paid for each release."""
    with SiteLedger(made.folders[number]) as ledger:
        return Counter(one.content["row"]["release"] for one in ledger.entries() if one.kind == "release")


class Dead(BaseException):
    """A server that is gone."""


def status_key(made: Federation, number: int) -> bytes:
    """The private X25519 key of a site for its first run."""
    with SiteLedger(made.folders[number]) as ledger:
        return bytes(ledger.runs()[0]["key"])


def lose(node: int, what: str, when: Callable[[dict[str, Any]], bool]) -> Callable[[int, bytes, Answer], Any]:
    """A fault that loses what `when` says of a kind of request to a node."""

    def fault(to: int, request: bytes, answer: Answer) -> bytes | Failure:
        if to != node or kind(request) != what or not is_confirmed(request):
            return answer()
        message = wire.unpack(request)
        about = wire.unpack(message["ask"].tobytes()) if what == "work" else message
        return LOST if when(about) else answer()

    return fault


def test_sites_of_a_trial_are_called_as_their_files(make: Callable[..., Federation]) -> None:
    made = make(3)
    assert [member.name for member in made.members] == ["east", "north", "south"]
    assert [folder.name for folder in made.folders] == ["east", "north", "south"]
    assert status(made.folders[1])["name"] == "north"


@pytest.mark.parametrize("gone", [None, 2])
def test_the_mean_gradient_is_that_of_the_sites_that_answered(
    gone: int | None, make: Callable[..., Federation], clinics: Path
) -> None:
    """Worked out by hand: a step along the sum of their records' gradients, divided by the declared number of records
    of those who answered. So little noise moves no parameter by more than 0.002 (five deviations)."""
    still = {"counts": 0.0, "clip": 1.0, "largest_step": 0.5, "walk": 1e9, "served": "last"}
    made = make(minimum_cohort=3, rounds=1, epsilon=2000.0, noise="integers", set=still)
    fault = None if gone is None else lose(gone, "work", lambda about: True)
    summary = made.run(fault)
    assert made.experiment.records_each == RECORDS
    before = torch.zeros_like(terms_of(made.experiment).initial).requires_grad_(True)  # where linear models begin
    loss = torch.zeros(())
    for number, name in enumerate(("east", "north", "south", "west")):
        if number == gone:
            continue
        file = np.load(clinics / f"{name}.npz")
        weights, bias = before[: 2 * FEATURES].reshape(2, FEATURES), before[2 * FEATURES :]
        outputs = torch.from_numpy(file["x"]) @ weights.T + bias
        loss = loss + functional.cross_entropy(outputs, torch.from_numpy(file["y"]), reduction="sum")
    (loss / (RECORDS * (4 if gone is None else 3))).backward()
    assert before.grad is not None
    expected = before.detach() - 0.5 * before.grad
    assert float((made.model(summary.run) - expected).abs().max()) < 2e-3
    assert float((expected - before.detach()).abs().max()) > 0.01
    assert [charges(made, number)["gradient"] for number in range(4)] == [int(number != gone) for number in range(4)]


def test_a_failed_attempt_is_paid_for_again_out_of_the_spare_ones(make: Callable[..., Federation]) -> None:
    fault = lose(1, "work", lambda about: about["step"] == "local" and about["round"] == 1 and about["attempt"] == 0)
    made = make(3, spare_turns=1)
    recorder = Recorder()

    def watched(node: int, request: bytes, answer: Answer) -> bytes | Failure:
        return fault(node, request, lambda: recorder(node, request, answer))  # type: ignore[arg-type, return-value]

    summary = made.run(watched)
    assert summary.rounds_done == 2
    assert "Round 2 could not be used: it is tried again, and paid for again." in made.told
    paid = [charges(made, number) for number in range(3)]
    assert paid == [{"labels": 1, "gradient": 3}, {"labels": 1, "gradient": 2}, {"labels": 1, "gradient": 3}]
    # Noise for three turns was set aside beforehand, so that what was planned is what was spent.
    assert summary.epsilon["outsider"] == pytest.approx(4.0, rel=1e-3)
    assert status(made.folders[0])["spent"]["outsider"] <= 4.0
    vectors = [
        wire.unpack(reply)["vector"].tobytes()
        for node, request, reply in recorder.of("work")
        if node == 0 and read_question(wire.unpack(request)).step == "local"
    ]
    assert len(vectors) == len(set(vectors)) == 3


def test_without_spare_attempts_the_run_ends_a_round_earlier(make: Callable[..., Federation]) -> None:
    made = make(3)
    fault = lose(1, "work", lambda about: about["step"] == "local" and about["round"] == 1 and about["attempt"] == 0)
    summary = made.run(fault)
    assert summary.rounds_done == 1
    assert summary.notes[0].startswith("The run ended early: too few sites had budget left for another question.")
    assert "`spare_turns`" in summary.notes[0]
    assert summary.epsilon["outsider"] == pytest.approx(4.0, rel=1e-3)  # that of the whole plan
    assert [charges(made, number)["gradient"] for number in range(3)] == [2, 1, 2]  # the second one has failed


def test_a_server_that_asks_more_often_than_sites_reserved_is_refused(make: Callable[..., Federation]) -> None:
    made, recorder = make(3), Recorder()
    made.run(recorder)
    last = [request for node, request, _ in recorder.of("work") if node == 0][-1]
    with SiteLedger(made.folders[0]) as ledger:
        (run,) = ledger.runs()
        ledger.upsert(RUNS, **run | {"state": "open", "key": new_key()})  # a server that never ends the run
    site = made.reopen(0)
    parties = wire.unpack(wire.unpack(last)["ask"].tobytes())["parties"]
    mine = public_key(status_key(made, 0))
    about = (run["run"].encode(), run["identity"].encode())
    signed = [site.identity, mine, keys.sign(site.context.private, "run key", *about, mine)]
    cohort = [signed if one[0] == site.identity else one for one in parties]
    assert refused(made.ask(0, with_ask(last, attempt=1, parties=cohort))) == "budget"
    assert "gradient has left as often as the run reserved" in (made.folders[0] / "site.log").read_text()
    assert charges(made, 0) == {"labels": 1, "gradient": 2}


@pytest.mark.parametrize("method", ["dp-fedsgd", "dp-fedavg-record"])
def test_attempts_that_used_rounds_up_end_the_run_and_epsilon_is_the_plan_s(
    method: str, make: Callable[..., Federation]
) -> None:
    made = make(3, method=method, rounds=3, minimum_cohort=3)
    fault = lose(1, "work", lambda about: about["round"] == 1 and about["attempt"] == 0)
    summary = made.run(fault)
    assert summary.rounds_done == 2
    assert summary.epsilon["outsider"] == pytest.approx(4.0, rel=1e-3)
    assert not any("more than their budgets" in note for note in summary.notes)


def test_a_server_killed_between_attempts_charges_each_of_them_once(make: Callable[..., Federation]) -> None:
    made, killed = make(3, spare_turns=1), []
    lost = lose(1, "work", lambda about: about["round"] == 1 and about["attempt"] == 0)

    def dies(node: int, request: bytes, answer: Answer) -> bytes | Failure:
        message = wire.unpack(request)
        if kind(request) == "work" and node == 2 and not killed:
            about = wire.unpack(message["ask"].tobytes())
            if (about["round"], about["attempt"]) == (1, 1):
                killed.append(node)
                raise Dead
        return lost(node, request, answer)

    with pytest.raises(Dead):
        made.run(dies)
    summary = made.resume("dp-fedsgd-deployed-1", dies)
    assert summary.rounds_done == 2
    assert summary.epsilon["outsider"] == pytest.approx(4.0, rel=1e-3)
    assert Counter(row.release for row in made.store.ledger(summary.run)) == {"labels": 1, "gradient": 3}
    assert [charges(made, number)["gradient"] for number in range(3)] == [3, 2, 3]


def test_another_attempt_draws_other_coins_and_other_noise(make: Callable[..., Federation]) -> None:
    """Each record enters with probability one half; so little noise that a sum shows who entered."""
    made = make(3, epsilon=5000.0, noise="integers", spare_turns=3, set={"sampling": 0.5, "counts": 0.0})
    found: list[bytes] = []

    def stop(node: int, request: bytes, answer: Answer) -> bytes | Failure:
        if kind(request) == "work" and node == 0:
            found.append(request)
            raise KeyboardInterrupt
        return answer()

    with pytest.raises(BaseException, match="takes the run up"):
        made.run(stop)
    question = read_question(wire.unpack(found[0]))
    (session,) = made.sites[0].context.sessions.values()
    sums = []
    for attempt in (0, 0, 1):
        asked = type(question)(
            type(question.id)(question.id.run, question.id.round, question.id.place, attempt),
            *(question.hash, question.number, question.step, question.message, question.parties),
        )
        outcome = session.answer(asked, dict(session.blank))
        sums.append(outcome.passed.values["gradient"][0])
    assert torch.equal(sums[0], sums[1])  # from the seed, for one attempt
    apart = (sums[0] - sums[2]).abs().float().mean() / sums[0].abs().float().mean()
    assert float(apart) > 0.02


def test_what_is_given_once_is_waited_for(make: Callable[..., Federation]) -> None:
    """The count of labels is not asked for again: a site that is away for a while is waited for."""
    made, lost = make(3), []

    def away(node: int, request: bytes, answer: Answer) -> bytes | Failure:
        if node == 2 and kind(request) == "work" and is_confirmed(request) and len(lost) < 3:
            lost.append(node)
            return LOST
        return answer()

    assert made.run(away).rounds_done == 2
    assert len(lost) == 3
    assert [charges(made, number)["labels"] for number in range(3)] == [1, 1, 1]


# ---- what a site says beforehand


RULES: dict[str, tuple[dict[str, Any], str]] = {
    "q": ({"max_sampling": 0.25}, "It samples records with probability 0.5, but max_sampling is 0.25."),
    "T": ({"max_rounds": 3}, "It asks this site in up to 4 rounds, but max_rounds is 3."),
    "C": ({"clip": (1e-3, 0.5)}, "A clipping threshold is 0.75, not between 0.001 and 0.5 as `clip` demands."),
    "cost": ({"max_epsilon": 3.0}, "Over all runs epsilon would be 4.00 for the outsider, but max_epsilon is 3."),
    "cohort": ({"min_cohort": 4}, "Minimum_cohort is 3, but min_cohort is 4."),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_are_told_beforehand_and_nothing_is_enrolled(name: str, make: Callable[..., Federation]) -> None:
    made = make(3, rounds=3, spare_turns=1, set={"sampling": 0.5, "clip": 0.75})
    allowed = check_experiment(made.folders[1], made.experiment)
    assert allowed.refusal is None
    told = allowed.to_dict()
    assert (told["records"], told["rounds"], told["sampling"]) == ({"train": RECORDS, "test": 10}, 4, 0.5)
    assert told["epsilon"]["outsider"] == pytest.approx(4.0, rel=1e-3)
    assert told["epsilon"]["outsider"] < told["epsilon"]["peer"] < told["epsilon"]["server"]
    changes, sentence = RULES[name]
    text = (made.folders[1] / "site.toml").read_text()
    for key, value in changes.items():
        written = list(value) if isinstance(value, tuple) else value
        lines = [line for line in text.splitlines() if not line.startswith((f"{key} =", f"# {key} ="))]
        text = f"{key} = {written}\n" + "\n".join(lines) + "\n"
    (made.folders[1] / "site.toml").write_text(text)
    site = made.reopen(1)
    found = check_experiment(made.folders[1], made.experiment)
    assert (found.refusal or "").endswith(sentence)
    with pytest.raises(UserError, match="2 of 3 sites take part, but 3 are needed; missing: north"):
        made.run()
    assert any(one.startswith("north: The ") for one in made.told)
    with SiteLedger(site.context.folder) as ledger:
        assert not ledger.runs()
        assert {entry.kind for entry in ledger.entries()} <= {"begin", "rules"}
    assert all(not charges(made, number) for number in range(3))


def test_a_check_counts_nothing_and_writes_nothing(make: Callable[..., Federation]) -> None:
    made = make(3)
    other = made.experiment.model_copy(update={"labels": ("0", "2")})
    before = (made.folders[0] / "site.db").read_bytes()
    found = check_experiment(made.folders[0], other)
    assert "has a record with the label '1', which `labels` lacks." in (found.refusal or "")
    assert (made.folders[0] / "site.db").read_bytes() == before
    assert status(made.folders[0])["misfits"] == 0


def test_a_run_s_reservation_stands_for_each_observer(make: Callable[..., Federation]) -> None:
    made = make(3)
    summary = made.run()
    spent = status(made.folders[0])["spent"]
    assert [spent[view] for view in VIEWS] == pytest.approx([summary.epsilon[view] for view in VIEWS], rel=1e-6)
    assert refused(made.ask(0, wire.request("work"))) == "message"
    assert load_file(made.folders[0] / status(made.folders[0])["runs"][0]["model"])


def test_experiments_that_cannot_be_deployed_are_told_at_the_site_too(make: Callable[..., Federation]) -> None:
    made = make(3)
    with pytest.raises(UserError, match="must declare"):
        check_experiment(made.folders[0], Experiment.make({"method": "dp-fedsgd", "data": "digits"}))


def test_a_site_that_missed_the_end_gets_its_models_when_the_run_is_resumed(make: Callable[..., Federation]) -> None:
    made = make(minimum_cohort=3)

    def gone(node: int, request: bytes, answer: Answer) -> bytes | Failure:
        return LOST if node == 3 and kind(request) in ("work", "open", "end") else answer()

    done = made.run(gone)
    assert made.told[-1] == "Not told yet that the run is over: west. They get their models when the run is resumed."
    assert [status(folder)["runs"][0]["state"] for folder in made.folders] == ["done", "done", "done", "open"]
    recorder = Recorder()
    assert made.resume(done.run, recorder).epsilon == done.epsilon
    assert [node for node, _, _ in recorder.of("end")] == [3]  # the others have heard it
    there = status(made.folders[3])["runs"][0]
    assert (there["state"], there["metrics"]["accuracy"]) == ("done", there["personal"])
    again = Recorder()
    made.resume(done.run, again)
    assert not again.of("end")
