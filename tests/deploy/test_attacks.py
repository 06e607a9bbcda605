"""What a lying server or a hostile site might try, and does not get."""

from __future__ import annotations

import dataclasses
import os
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import QUICK, Federation, Recorder, changed, federation, is_confirmed, kind, refused
from safetensors.torch import load_file

from sordino.deploy.protocol import keys, wire
from sordino.deploy.protocol.carrier import Failure
from sordino.deploy.protocol.roster import read_roster
from sordino.deploy.protocol.secure_sum import MaskingError
from sordino.deploy.server.presence import refusal_text
from sordino.deploy.site import freshness
from sordino.deploy.site.ledger import Head, SiteLedger
from sordino.deploy.site.site import Site
from sordino.deploy.site.status import status
from sordino.deploy.terms import terms_of
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.parts import curves

QUICKER = dataclasses.replace(QUICK, work=0.3)


def paid(made: Federation, number: int) -> int:
    """How many releases a site has paid for."""
    with SiteLedger(made.folders[number]) as ledger:
        return sum(entry.kind == "release" for entry in ledger.entries())


# ---- a lying server


def enrolment(experiment: Experiment, **changes: Any) -> bytes:
    """What a server sends that wants something else run than all agreed on, and computes as honestly as anybody."""
    terms = terms_of(Experiment.make(terms_of(experiment).carried() | changes))
    about: dict[str, Any] = {"run": os.urandom(8).hex(), "identity": terms.identity, "experiment": terms.carried()}
    return wire.request("enrol", number=0, echo=None, **about)


def test_refusals_do_not_tell_which_labels_occur(tmp_path: Path) -> None:
    """Each refusal that depends on the data is a bit about them, without noise: it is told five times."""
    with federation(tmp_path) as made:
        site = made.sites[0]
        probes = [
            enrolment(made.experiment, labels=[str(label) for label in range(10) if label != missing])
            for missing in range(6)
        ]
        assert [refused(site.answer(probe)) for probe in probes] == ["data"] * 5 + ["misfits"]
        assert refused(site.answer(probes[0])) == "data", "what was told may be told again"
        assert refused(site.answer(enrolment(made.experiment))) == "misfits", "it does not even look"
        assert refused(made.reopen(0).answer(probes[5])) == "misfits", "not after a restart either"
        assert status(made.folders[0])["misfits"] == 5
        rules = made.folders[0] / "site.toml"
        rules.write_text(rules.read_text().replace("max_misfits = 5", "max_misfits = 6"))
        assert refused(made.reopen(0).answer(enrolment(made.experiment))) == "", "its owner allows one more"


def test_a_question_that_fails_whatever_the_records_is_counted_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with federation(tmp_path) as made:

        def fail(request: bytes) -> None:
            (session,) = made.sites[0].context.sessions.values()
            with monkeypatch.context() as patch:
                patch.setattr(session.clients, "answer", lambda *_: 1 / 0)
                patch.setattr(session.clients, "absent", lambda *_: 1 / 0)
                for _ in range(3):
                    assert refused(made.sites[0].answer(request)) == "failed"
            assert "ZeroDivisionError" in (made.folders[0] / "site.log").read_text()

        def fault(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes:
            if node == 0 and kind(request) == "work" and is_confirmed(request) and not paid(made, 0):
                fail(request)
            return answer()

        assert made.run(fault).rounds_done == 2
        assert (paid(made, 0), status(made.folders[0])["misfits"]) == (2, 1)


def test_what_was_paid_for_and_lost_is_not_drawn_again(tmp_path: Path) -> None:
    with federation(tmp_path) as made:
        seen = Recorder()

        def lose(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
            reply = seen(node, request, answer)
            if node == 0 and kind(request) == "work" and len(seen.of("work")) > 3 and not refused(reply):
                database = sqlite3.connect(made.folders[0] / "site.db")
                database.execute("delete from asks")
                database.commit()
                database.close()
                assert refused(made.sites[0].answer(request)) == "old"
                assert paid(made, 0) == 2
            return reply

        assert made.run(lose).rounds_done == 1, "another attempt is beyond its budget"


@pytest.mark.parametrize(
    "changes",
    [{"clients": 10**9}, {"rounds": 10**15}, {"shape": [10**6, 10**6]}, {"labels": [str(one) for one in range(10**5)]}],
    ids=["clients", "rounds", "shape", "labels"],
)
def test_experiments_beyond_all_measure_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    with federation(tmp_path) as made:
        terms = terms_of(made.experiment)
        message = {"run": "other", "number": 0, "identity": terms.identity, "experiment": terms.carried() | changes}
        assert refused(made.sites[0].answer(wire.request("enrol", **message))) in ("experiment", "code", "failed")


def test_no_file_is_opened_because_a_server_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A curve travels as what stands in its file; sites that are told a file's name refuse, whether it is there."""
    curve = tmp_path / "curve.json"
    curves.save(dataclasses.replace(curves.PUBLISHED["mnist"], low=1.0, high=30.0), curve)
    settings = {"budgets": "4:0.5,16:0.5", "curve": str(curve)}
    with federation(tmp_path, method="pac-dp", records=300, set=settings) as made:
        enrol = enrolment(made.experiment)
        carried = wire.unpack(enrol)["experiment"]
        monkeypatch.setattr(curves, "load_curve", lambda path: pytest.fail("a site opened it"))
        assert str(curve) not in str(carried)
        assert curves.curve_called(carried["set"]["curve"]).high == 30.0
        assert refused(made.sites[0].answer(enrol)) == ""
        for name in (str(curve), str(tmp_path / "nothing.json")):
            named = {**carried, "set": {**carried["set"], "curve": name}}
            assert refused(made.sites[0].answer(changed(enrol, run="other", experiment=named))) == "experiment"


def test_what_a_site_alone_is_told_must_be_finite(tmp_path: Path) -> None:
    with federation(tmp_path, protect_from="server", minimum_cohort=2) as made:
        enrol = enrolment(made.experiment)
        assert refused(made.sites[0].answer(enrol)) == ""
        message = {"global": terms_of(made.experiment).initial, "clip": 0.5}
        own = wire.pack({"aside": torch.tensor([[float("nan")]])})
        assert refused(made.sites[0].answer(question(enrol, "local", message, own))) == "bounds"


def test_names_that_would_do_more_than_be_read_are_refused(tmp_path: Path) -> None:
    """A line break writes another line into a site's log; an escape sequence speaks to a terminal, at both ends."""
    with federation(tmp_path) as made:
        enrol = enrolment(made.experiment)
        for run in ("run\nanswered", "run\x1b[2J"):
            assert refused(made.sites[0].answer(changed(enrol, run=run))) == "message"
        told: list[str] = []
        made.sites[0].context.tell = told.append
        made.sites[0].context.log("of a server: \x1b[2J\n2000-01-01 00:00:00 answered")
        assert told == ["of a server: ?[2J"]
        assert (made.folders[0] / "site.log").read_text().splitlines()[-1] == "    2000-01-01 00:00:00 answered"
        rows = [f'[[site]]\nname = "a\\u001b[8m{one}"\nidentity = "{one * 64}"\n' for one in "12"]
        (tmp_path / "roster.toml").write_text("\n".join(rows))
        with pytest.raises(UserError, match="can be shown"):
            read_roster(tmp_path / "roster.toml")
    assert refusal_text({"sentence": "\x1b]0;owned\x07No\n."}) == "]0;ownedNo."


def test_a_run_s_key_is_gone_from_the_file_when_it_is_over(tmp_path: Path) -> None:
    with federation(tmp_path) as made:
        site, enrol = made.sites[0], enrolment(made.experiment)
        assert refused(site.answer(enrol)) == ""
        run = wire.unpack(enrol)["run"]
        with SiteLedger(made.folders[0]) as ledger:
            assert ledger.query("pragma secure_delete") == [(1,)]
            key = (ledger.run(run) or {})["key"]
        assert key in (made.folders[0] / "site.db").read_bytes()
        assert refused(site.answer(wire.request("end", run=run, model=None))) == ""
        assert key not in (made.folders[0] / "site.db").read_bytes()


def test_models_at_the_end_must_be_of_the_network(tmp_path: Path) -> None:
    with federation(tmp_path, personal="blend") as made:
        site, enrol = made.sites[0], enrolment(made.experiment)
        assert refused(site.answer(enrol)) == ""
        run, model = wire.unpack(enrol)["run"], terms_of(made.experiment).initial
        wrong: list[dict[str, Any]] = [
            {"model": model[1:], "averaged": model},
            {"model": model, "averaged": model[1:]},
            {"model": model, "averaged": "none"},
            {"averaged": model},
        ]
        for given in wrong:
            assert refused(site.answer(wire.request("end", run=run, **given))) == "bounds"
        assert refused(site.answer(wire.request("end", run=run, model=model))) == ""
        kept = load_file(made.folders[0] / status(made.folders[0])["runs"][0]["model"])
        assert torch.equal(kept["averaged"], model)  # a server of an earlier version knows of no mean


def question(enrol: bytes, step: str, message: Mapping[str, Any], own: bytes = b"", **places: int) -> bytes:
    """A question of a run in which a site was enrolled, whose answers are not summed."""
    places = {"round": 0, "place": 0, "attempt": 0, "question": 0} | places
    asked = {"run": wire.unpack(enrol)["run"], "step": step, "message": message, "parties": [], **places}
    parts = {"ask": wire.pack(asked), "own": own}
    return wire.request("work", echo=None, **{name: np.frombuffer(part, np.uint8) for name, part in parts.items()})


def test_records_give_no_wider_matrix_and_no_more_gradients_than_was_set_aside_for(tmp_path: Path) -> None:
    """Every entry of a matrix is rounded, and noise covers so many; turns are counted, whatever the attempt."""
    settings = {"cluster_share": 0.3, "clipping": "fixed"}
    with federation(tmp_path, method="adadp-cfl", records=300, set=settings) as made:
        site, enrol = made.sites[0], enrolment(made.experiment)
        assert refused(site.answer(enrol)) == ""
        wide = torch.eye(64).repeat(1, 40)
        assert refused(site.answer(question(enrol, "describe", {"directions": wide}))) == "bounds"
        own = wire.pack({"directions": wide.unsqueeze(0)})
        assert refused(site.answer(question(enrol, "describe", {}, own))) == "bounds"
        assert (paid(made, 0), status(made.folders[0])["misfits"]) == (0, 0)
        narrow = {"directions": wide[:, :8]}
        assert refused(made.ask(0, question(enrol, "describe", narrow))) == ""
        message = {"global": terms_of(made.experiment).initial, "clip": 1.0}
        local = [question(enrol, "local", message, place=1, attempt=one) for one in range(3)]
        assert [refused(site.answer(one)) for one in local] == ["", "", "budget"]
        assert refused(site.answer(question(enrol, "describe", narrow, round=1))) == "budget"


def test_a_run_ends_where_a_site_s_records_become_more_or_fewer(tmp_path: Path) -> None:
    """Noise is planned for a number of records; turns with two plans would cost what neither of them says."""
    with federation(tmp_path, method="dp-fedavg-record", records=300) as made:
        enrol = enrolment(made.experiment)
        assert refused(made.sites[0].answer(enrol)) == ""
        message = {"global": terms_of(made.experiment).initial, "clip": 1.0}
        first, second = (question(enrol, "local", message, round=one) for one in range(2))
        assert refused(made.ask(0, first)) == ""
        arrays = dict(np.load(made.folders[0] / "data.npz"))
        np.savez(made.folders[0] / "data.npz", **arrays | {name: arrays[name][1:] for name in ("x", "y")})
        assert refused(made.reopen(0).answer(second)) == "data"
        np.savez(made.folders[0] / "data.npz", **arrays)
        made.reopen(0)
        assert refused(made.ask(0, second)) == ""


def test_gradients_that_leave_by_two_ways_share_their_turns(tmp_path: Path) -> None:
    with federation(tmp_path, method="telling:TwoWays", records=300) as made:
        site, enrol = made.sites[0], enrolment(made.experiment)
        assert refused(site.answer(enrol)) == ""
        message = {"global": terms_of(made.experiment).initial}
        steps = ("one", "other", "one", "other")
        asked = [question(enrol, step, message, place=place) for place, step in enumerate(steps)]
        assert [refused(made.ask(0, one)) for one in asked] == ["", "", "budget", "budget"]


def test_two_questions_at_once_are_not_paid_with_the_same_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs of which the budget pays for one: a question of the second is answered while the first is worked on."""
    with federation(tmp_path, protect_from="server", minimum_cohort=2, rounds=1) as made:
        site, enrolled = made.sites[0], [enrolment(made.experiment) for _ in range(2)]
        assert [refused(site.answer(one)) for one in enrolled] == ["", ""]
        message = {"global": terms_of(made.experiment).initial, "clip": 0.5}
        slow, quick = (question(one, "local", message) for one in enrolled)
        session = site.context.sessions[wire.unpack(enrolled[0])["run"]]
        answer, between = session.clients.answer, []

        def overtaken(*arguments: Any) -> Any:
            between.append(refused(made.ask(0, quick)))
            return answer(*arguments)

        monkeypatch.setattr(session.clients, "answer", overtaken)
        assert refused(made.ask(0, slow)) == "budget"
        assert (between, paid(made, 0)) == ([""], 1)


# ---- a hostile site


def test_no_site_closes_another_with_a_row_that_there_never_was(tmp_path: Path) -> None:
    with federation(tmp_path, noise="integers") as made:
        made.run()
        victim, hostile = made.sites[0].context, made.sites[1].context
        with SiteLedger(hostile.folder) as ledger:
            ours = ledger.head()
        with SiteLedger(victim.folder) as ledger:
            head = ledger.head()
            genuine = keys.sign(victim.private, *head.signed_parts())

            def note(seen: Head, signature: bytes) -> bytes:
                mine = keys.sign(hostile.private, *ours.signed_parts())
                return freshness.NOTE.pack(ours.position, ours.link, mine, seen.position, seen.link, signature)

            def check(one: bytes) -> None:
                freshness.check_note(ledger, victim.identity, hostile.identity, one)

            check(note(head, genuine))
            check(note(Head(0, bytes(32)), b""))
            for forged in (
                note(Head(head.position + 1, os.urandom(32)), genuine),
                note(Head(head.position, os.urandom(32)), bytes(64)),
                note(head, keys.sign(hostile.private, *head.signed_parts())),
                note(head, genuine)[:-1],
                bytes(freshness.NOTE.size),
            ):
                with pytest.raises(MaskingError):
                    check(forged)
            ahead = Head(head.position + 1, os.urandom(32))
            with pytest.raises(freshness.LedgerBehindError):
                check(note(ahead, keys.sign(victim.private, *ahead.signed_parts())))


@pytest.mark.parametrize("value", [2**40, -(2**62)])
def test_a_plain_message_that_no_clip_allows_is_left_out(value: int, tmp_path: Path) -> None:
    with federation(tmp_path, protect_from="server", minimum_cohort=2, rounds=1) as made:

        def poison(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes:
            reply = answer()
            message = wire.unpack(reply)
            if node != 1 or "values" not in message:
                return reply
            wild = {name: torch.full_like(rows, value) for name, rows in message["values"].items()}
            return changed(reply, values=wild)

        summary = made.run(poison)
        assert summary.rounds_done == 1
        assert any("site-1 sent a reply that is no valid answer" in sentence for sentence in made.told)
        assert float(made.model(summary.run).abs().max()) < 100


# ---- sites that are missing when all are needed


@pytest.mark.slow
def test_what_is_given_once_is_waited_for_and_never_asked_anew(tmp_path: Path) -> None:
    with federation(tmp_path, method="adadp-cfl", noise="integers", set={"clipping.effect": 1e9}) as made:
        attempts: list[Any] = []

        def gone(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
            if kind(request) == "work":
                asked: Mapping[str, Any] = wire.unpack(wire.unpack(request)["ask"].tobytes())
                if asked["step"] == "describe":
                    attempts.append((node, asked["attempt"]))
                    if node == 2:
                        return Failure("gone")
            return answer()

        for trial in range(3):
            with pytest.raises(UserError, match="too few sites answered"):
                made.run(gone, QUICKER) if not trial else made.resume(made.store.all()[0].run, gone, QUICKER)
        assert {attempt for _, attempt in attempts} == {0}
        summary = made.resume(made.store.all()[0].run)
        assert summary.rounds_done == 2
        for folder in made.folders:
            with SiteLedger(folder) as ledger:
                described = [
                    one for one in ledger.entries() if one.kind == "release" and one.content["ask"][1:3] == [0, 0]
                ]
            assert len({tuple(one.content["ask"]) for one in described}) == 1


# ---- files


def test_a_book_in_which_a_value_was_changed_is_refused(tmp_path: Path) -> None:
    with federation(tmp_path, noise="integers") as made:
        made.run()
        changes = {
            "update facts set value = zeroblob(32) where name = 'secret'": "facts",
            "update runs set state = 'open'": "runs",
            "update memory set state = zeroblob(100)": "memory",
            "update rounds set personal = 1.0": "rounds",
            "update seen set position = 0": "seen",
            "delete from facts where name = 'head'": "head",
        }
        made.sites[0].close()
        whole = (made.folders[0] / "site.db").read_bytes()
        for statement, word in changes.items():
            database = sqlite3.connect(made.folders[0] / "site.db")
            assert database.execute(statement).rowcount > 0
            database.commit()
            database.close()
            with pytest.raises(UserError, match=word):
                Site.open(made.folders[0])
            (made.folders[0] / "site.db").write_bytes(whole)
        made.reopen(0)
