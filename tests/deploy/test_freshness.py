"""Other sites as witnesses: what they note closes a restored site, and nothing that a server does makes it spend."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from federations import Federation, Recorder, changed, federation, kind, refused
from test_attacks import enrolment

from sordino.deploy.protocol import keys, wire
from sordino.deploy.protocol.carrier import Failure
from sordino.deploy.server.trips import Deadlines
from sordino.deploy.site.freshness import LedgerStatement, Note
from sordino.deploy.site.ledger import Head, SiteLedger
from sordino.deploy.site.status import status
from sordino.errors import UserError

RECORDS: dict[str, Any] = {"method": "dp-fedavg-record", "records": 300, "rounds": 1}
PLAIN: dict[str, Any] = {"protect_from": "server", "minimum_cohort": 2, "rounds": 1}
LOST = Failure("lost")
QUICK_WORK = Deadlines(hello=0.0, work=0.7, open=0.2, attempts=1)


def paid(made: Federation, number: int = 0) -> int:
    """Number of releases that a site has paid for."""
    with SiteLedger(made.folders[number]) as ledger:
        return sum(entry.kind == "release" for entry in ledger.entries())


def first_question(made: Federation) -> bytes:
    """The first question of a new run to site 0, which it has answered by stating where its ledger ends."""
    found: list[bytes] = []

    def stop(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
        if kind(request) == "note":
            raise KeyError("the server is gone")
        if node == 0 and kind(request) == "work":
            found.append(request)
        return answer()

    with pytest.raises(KeyError):
        made.run(stop)
    return found[0]


def stated(made: Federation, request: bytes) -> Any:
    """Site 0's statement of its ledger when it is asked something."""
    reply = wire.unpack(made.sites[0].answer(request))
    assert reply["code"] == "unconfirmed"
    return reply["statement"]


# ---- honest servers


@pytest.mark.parametrize("changes", [RECORDS, PLAIN, {"rounds": 1}], ids=["records", "plain", "summed"])
def test_others_hold_a_run_s_beginning_before_anything_leaves(changes: dict[str, Any], tmp_path: Path) -> None:
    with federation(tmp_path, **changes) as made:
        held: list[bool] = []

        def look(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
            reply = answer()
            if kind(request) == "work" and not refused(reply):
                with SiteLedger(made.folders[node]) as ledger:
                    entries = [entry.kind for entry in ledger.entries()]
                begun = 1 + max(place for place, one in enumerate(entries) if one in ("start", "reserve"))
                assert ("reserve" in entries) == (changes == RECORDS)
                assert entries.index("release") >= begun
                for other in {0, 1, 2} - {node}:
                    with SiteLedger(made.folders[other]) as ledger:
                        head, _ = ledger.head_of(made.members[node].identity) or (Head(0, b""), b"")
                    held.append(head.position >= begun)
            return reply

        assert made.run(look).rounds_done == 1
        assert held == [True] * 6


def test_notes_are_asked_for_once_a_run_and_after_a_restart(tmp_path: Path) -> None:
    with federation(tmp_path, **PLAIN | {"rounds": 3}) as made:
        seen: list[tuple[int, str]] = []

        def restart(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
            work = kind(request) == "work"
            if work and node == 1 and wire.unpack(wire.unpack(request)["ask"].tobytes())["round"] == 2:
                if (1, "restart") not in seen:
                    made.reopen(1)
                    seen.append((1, "restart"))
                return made.sites[1].answer(request)
            seen.append((node, kind(request)))
            return answer()

        assert made.run(restart).rounds_done == 3
        assert [node for node, what in seen if what == "note"] == [0, 1, 2] * 2
        assert paid(made, 1) == 3


def test_the_server_says_whom_a_site_waits_for(tmp_path: Path) -> None:
    with federation(tmp_path, **PLAIN) as made:

        def silent(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
            return LOST if node == 2 and kind(request) == "note" else answer()

        with pytest.raises(UserError, match="too few sites answered"):
            made.run(silent, QUICK_WORK)
        waits = [sentence for sentence in made.told if "Waiting until" in sentence]
        assert waits[-1] == "Waiting until other sites confirm the ledger of site-0, site-1; no answer yet from site-2."
        assert "missing: site-2" in (made.folders[0] / "site.log").read_text()
        assert [paid(made, number) for number in range(3)] == [0, 0, 1], "two others have confirmed site-2"
        assert made.resume(made.store.all()[0].run).rounds_done == 1


def test_some_others_suffice_where_the_owners_say_so(tmp_path: Path) -> None:
    with federation(tmp_path, 4, **PLAIN) as made:
        assert made.sites[0].context.policy.rules.witnesses == 2

        def silent(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
            return LOST if node == 3 and kind(request) in ("note", "work") else answer()

        assert made.run(silent).rounds_done == 1


def test_a_note_that_was_lost_does_no_harm(tmp_path: Path) -> None:
    """Others hold a head of which the site does not know: it is told, and shows how its ledger went on from there."""
    with federation(tmp_path, **PLAIN) as made:
        made.notes(0, stated(made, first_question(made)))
        made.reopen(0)
        request = first_question(made)  # of another run
        assert refused(made.ask(0, request)) == "unconfirmed"
        assert refused(made.ask(0, request)) == ""


# ---- a site that was restored, and lying servers


@pytest.fixture(params=["plain", pytest.param("records", marks=pytest.mark.slow)])
def restored(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A federation whose site 0 was restored, its witness too, to before its only run; and that run's question."""
    with federation(tmp_path, **RECORDS if request.param == "records" else PLAIN) as made:
        made.backup(0, tmp_path / "backup")
        seen = Recorder()
        made.run(seen)
        made.sites[0].close()
        made.restore(0, tmp_path / "backup", witness=True)
        made.reopen(0)
        yield made, seen


def silent(request: bytes) -> bytes:
    """A request without what the server knows of the site's ledger."""
    return changed(request, echo=None) if kind(request) in ("enrol", "work", "open") else request


def test_a_restored_site_is_closed_by_the_others_though_the_server_lies(restored: tuple[Federation, Recorder]) -> None:
    made, _ = restored

    def lying(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
        return made.sites[node].answer(silent(request))

    made.forget()
    made.run(lying, QUICK_WORK)  # which ends at once: the others' budgets are used up
    assert paid(made) == 0
    assert status(made.folders[0])["spoiled"]
    assert status(made.folders[0])["spent"]["server"] is None


def test_a_restored_site_does_not_begin_the_same_run_again(restored: tuple[Federation, Recorder]) -> None:
    made, seen = restored
    assert refused(made.sites[0].answer(silent(seen.of("enrol")[0][1]))) == ""
    question = changed(next(one for node, one, _ in seen.of("work") if node == 0), echo=None, notes={})
    assert refused(made.ask(0, question)) == "restored"
    assert paid(made) == 0


def test_no_longer_branch_hides_what_another_site_holds(restored: tuple[Federation, Recorder]) -> None:
    """The server lets the restored ledger grow beyond the lost one, and shows it to the others before it asks."""
    made, seen = restored
    enrol = silent(seen.of("enrol")[0][1])
    assert refused(made.sites[0].answer(enrol)) == ""
    site = made.sites[0].context
    patient = site.policy.rules.model_copy(update={"max_misfits": 100})
    site.policy = dataclasses.replace(site.policy, rules=patient)
    for number in range(20):
        labels = [*(str(one) for one in range(9)), f"other {number}"]
        assert refused(made.sites[0].answer(enrolment(made.experiment, labels=labels))) == "data"
    question = changed(next(one for node, one, _ in seen.of("work") if node == 0), echo=None, notes={})
    made.notes(0, stated(made, question))
    made.notes(0, stated(made, question))
    assert refused(made.ask(0, question)) == "restored"
    assert paid(made) == 0


def test_a_server_leaves_out_a_site_whose_ledger_is_older(restored: tuple[Federation, Recorder]) -> None:
    """One that does not listen to what the server knows of it."""
    made, _ = restored

    def deaf(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
        return made.sites[node].answer(silent(request))

    with contextlib.suppress(UserError):  # where too few are left without it
        made.run(deaf, QUICK_WORK)
    assert any("site-0 has a ledger that is older" in sentence for sentence in made.told)


def test_notes_that_nobody_gave_do_not_count(tmp_path: Path) -> None:
    with federation(tmp_path, **PLAIN) as made:
        request = first_question(made)
        before = made.notes(0, stated(made, request))
        site = made.reopen(0)
        statement = LedgerStatement.from_list(stated(made, request))
        good = made.notes(0, statement.to_list())
        one, other = (made.members[number].identity for number in (1, 2))
        owner, about = site.identity, (statement.head, statement.heads_signature, 0)
        private = made.sites[1].context.private
        forged: list[Any] = [
            None,
            b"note",
            [],
            good[one][:-1],
            [*good[one][:-1], os.urandom(64)],
            good[other],
            before[one],
            Note.sign(keys.new_identity(), statement.nonce, owner, *about).to_list(),
            Note.sign(private, os.urandom(32), owner, *about).to_list(),
            Note.sign(private, statement.nonce, other, *about).to_list(),
            Note.sign(private, statement.nonce, owner, statement.head, bytes(64), 0).to_list(),
            Note.sign(private, statement.nonce, owner, Head(7, os.urandom(32)), os.urandom(64), 0).to_list(),
            [*good[one][:3], -1, good[one][4]],
        ]
        for note in forged:
            assert refused(site.answer(changed(request, notes={**good, one: note}))) == "unconfirmed", note
        strange: list[Any] = [None, 7, [], {}, {other: good[other]}, {b"": good[one], other: good[other]}]
        for notes in strange:
            assert refused(site.answer(changed(request, notes=notes))) == "unconfirmed"
        assert paid(made) == 0
        assert not status(made.folders[0])["spoiled"], "nobody closes a site without its own signature"
        assert refused(site.answer(changed(request, notes=good))) == ""


def test_notes_on_an_earlier_beginning_do_not_count(tmp_path: Path) -> None:
    """A second run has notes of its own: those on the first one's beginning are too old."""
    with federation(tmp_path, **PLAIN) as made:
        made.allow_runs(2)
        first = first_question(made)
        notes = made.notes(0, stated(made, first))
        second = first_question(made)
        assert refused(made.sites[0].answer(changed(second, notes=notes))) == "unconfirmed"
        assert refused(made.sites[0].answer(changed(first, notes=notes))) == ""
        assert refused(made.sites[0].answer(second)) == "unconfirmed", "each run for itself"
        assert refused(made.ask(0, second)) == ""


def test_a_site_that_has_forgotten_is_no_witness(tmp_path: Path) -> None:
    """It says that it has seen nothing; a site that is new in the roster may say so."""
    with federation(tmp_path, **PLAIN) as made:
        made.allow_runs(2)
        made.backup(1, tmp_path / "backup")
        made.run()
        made.restore(1, tmp_path / "backup", witness=True)
        made.reopen(1)
        made.forget()
        question = first_question(made)
        assert refused(made.ask(0, question)) == "unconfirmed"
        assert paid(made) == 1


# ---- those who note


def test_statements_that_are_none_are_not_noted(tmp_path: Path) -> None:
    with federation(tmp_path, **PLAIN) as made:
        statement = stated(made, first_question(made))
        owner, other = made.sites[0].identity, made.sites[1]

        def ask(statements: Any) -> dict[str, Any]:
            return wire.unpack(other.answer(wire.request("note", statements=statements)))

        nonce, since, links, heads, signature = statement
        private = keys.new_identity()
        stranger = LedgerStatement.sign(private, nonce, since, links)
        for wrong in (
            {owner: [os.urandom(32), *statement[1:]]},
            {owner: [nonce, since + 1, links, heads, signature]},
            {owner: [nonce, since, links[:-32] + os.urandom(32), heads, signature]},
            {owner: [nonce, since, links, bytes(64), signature]},
            {owner: stranger.to_list()},
            {keys.public_identity(private): stranger.to_list()},
            {other.identity: statement},
            {"owner": statement},
            {b"owner": statement},
        ):
            assert ask(wrong)["notes"] == {}, wrong
        for broken in ({owner: 7}, {owner: statement[:-1]}, {owner: [nonce, since, b"", heads, signature]}, 7, None):
            assert ask(broken)["code"] == "message"
        with SiteLedger(made.folders[1]) as ledger:
            assert ledger.head_of(owner) is None
        assert list(ask({owner: statement})["notes"]) == [owner]
