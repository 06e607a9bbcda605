"""Every way in which a deployment is known to fail, provoked: nothing is drawn twice, released unpaid or lost."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import QUICK, Federation, Recorder, changed, federation, is_confirmed, kind, refused, with_ask
from killing import die_at, killed
from safetensors.torch import load_file

from sordino.api import load_models
from sordino.deploy.database import AlteredError
from sordino.deploy.protocol import keys, wire
from sordino.deploy.protocol.carrier import Failure
from sordino.deploy.protocol.secure_sum import new_key, public_key
from sordino.deploy.server.journal import DeploymentJournal
from sordino.deploy.site.ledger import SiteLedger
from sordino.deploy.site.site import Site
from sordino.deploy.site.status import models_at, status
from sordino.deploy.terms import terms_of
from sordino.errors import Stopped, UserError
from sordino.privacy.unit import Unit
from sordino.store.spending import planned, sum_up
from sordino.store.store import Store

LOST = Failure("lost")


def releases(made: Federation, number: int) -> int:
    """How many releases a site has paid for."""
    with SiteLedger(made.folders[number]) as ledger:
        return sum(entry.kind == "release" for entry in ledger.entries())


def refused_text(reply: bytes) -> str:
    """The short name of a refusal, read without the wire."""
    size = int.from_bytes(reply[8:16], "little")
    return str(dict(json.loads(reply[16 : 16 + size])[1])["code"])


class Probe:
    """A fault that does something at the first request of a kind to a node, and then lets it through."""

    def __init__(self, what: str, action: Callable[[bytes], Any], node: int = 0, skip: int = 0) -> None:
        self.what, self.action, self.node, self.left = what, action, node, skip + 1

    def __call__(self, node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
        if node == self.node and kind(request) == self.what and is_confirmed(request):
            self.left -= 1
            if self.left == 0:
                found = self.action(request)
                if found is not None:
                    return found
        return answer()


class Dead(BaseException):
    """A server that is gone."""


# ---- sites


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_site_killed_at_its_commit(when: str, tmp_path: Path) -> None:
    with federation(tmp_path) as made:

        def die(request: bytes) -> None:
            def child() -> None:
                die_at(SiteLedger, "_commit", 2, when)  # the first one says who has confirmed its ledger
                made.sites[0].answer(request)

            assert killed(child)
            assert releases(made, 0) == (when == "after")
            made.reopen(0)
            again = made.ask(0, request)
            assert refused(again) == ""
            assert made.sites[0].answer(request) == again
            assert releases(made, 0) == 1

        summary = made.run(Probe("work", die))
        assert summary.rounds_done == 2
        assert [releases(made, number) for number in range(3)] == [2, 2, 2]


def test_a_site_that_is_gone_in_the_first_trip_is_done_without(tmp_path: Path) -> None:
    with federation(tmp_path, 4, minimum_cohort=3, noise="integers") as made:
        summary = made.run(Probe("work", lambda request: LOST, node=1, skip=1))  # it is looked for once more
        assert summary.rounds_done == 2
        assert [releases(made, number) for number in range(4)] == [2, 2, 2, 2]
    with federation(tmp_path / "more", 4, minimum_cohort=3) as made:

        def gone(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
            return LOST if node == 1 and kind(request) in ("work", "open") else answer()

        assert made.run(gone).rounds_done == 2
        assert [releases(made, number) for number in range(4)] == [2, 0, 2, 2]


def test_a_site_that_is_gone_in_the_second_trip_is_waited_for_then_paid_for_again(tmp_path: Path) -> None:
    with federation(tmp_path, spare_turns=3) as made:
        asked = []

        def slow(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
            if kind(request) == "open" and node == 2:
                asked.append(wire.unpack(request)["attempt"])
                if len(asked) < 3:
                    return LOST
            return answer()

        summary = made.run(slow, dataclasses.replace(QUICK, open=60.0))
        assert summary.rounds_done == 2
        assert asked == [0, 0, 0, 0]  # of the first round three times, until it answered
        assert [releases(made, number) for number in range(3)] == [2, 2, 2]

        def never(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
            return LOST if kind(request) == "open" and node == 2 and wire.unpack(request)["attempt"] == 0 else answer()

    with federation(tmp_path / "never", spare_turns=3) as made:
        summary = made.run(never)
        assert summary.rounds_done == 2
        # Who did not answer may have had a reason in its data: the plan counts, its spare turns included.
        mu = sum_up([planned(terms_of(made.experiment))], Unit.CLIENT, summary.delta)["epsilon"]
        assert summary.epsilon["outsider"] >= mu["outsider"] > summary.charged["outsider"]
        assert [releases(made, number) for number in range(3)] == [4, 4, 4]
        assert any("paid for again" in sentence for sentence in made.told)


def test_too_few_answers_are_never_opened(tmp_path: Path) -> None:
    with federation(tmp_path, 4, minimum_cohort=3, spare_turns=3) as made:
        seen = Recorder()

        def half(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
            return LOST if node in (0, 1) and kind(request) == "work" else seen(node, request, answer)

        with pytest.raises(UserError, match="too few sites answered"):
            made.run(half)
        assert seen.of("open") == []
        assert len(seen.of("work")) >= 2 * QUICK.attempts
        (row,) = made.store.all()
        assert row.state == "stopped"
        assert made.resume(row.run).rounds_done == 2  # when they are back


# ---- the server


@pytest.mark.parametrize("moment", ["work", "survivors", "open", "sum"])
def test_a_server_that_was_killed_goes_on_with_the_same_sum(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with federation(tmp_path / "whole", noise="integers") as whole:
        expected = whole.model(whole.run().run)
    with federation(tmp_path / "killed", noise="integers") as made:

        def die(request: bytes) -> None:
            raise Dead

        fault = Probe("work", die, node=2, skip=1) if moment == "work" else Probe("open", die, node=2, skip=1)
        if moment in ("survivors", "sum"):
            name, fault, calls = {"survivors": "fix_survivors", "sum": "keep_sum"}[moment], None, []
            original = getattr(DeploymentJournal, name)

            def dying(self: DeploymentJournal, *arguments: Any) -> None:
                original(self, *arguments)
                calls.append(arguments)
                if len(calls) == 2:
                    raise Dead

            monkeypatch.setattr(DeploymentJournal, name, dying)
        with pytest.raises(Dead):
            made.run(fault)
        monkeypatch.undo()
        (row,) = made.store.all()
        assert row.rounds_done == 1
        summary = made.resume(row.run)
        assert torch.equal(made.model(row.run), expected)
        assert [releases(made, number) for number in range(3)] == [2, 2, 2]
        assert summary.rounds_done == 2
        assert made.resume(row.run) == summary


# ---- messages


def test_what_is_asked_twice_is_answered_once_and_what_is_altered_never(tmp_path: Path) -> None:
    with federation(tmp_path) as made:
        first: dict[str, bytes] = {}

        def twice(request: bytes) -> None:
            site = made.sites[0]
            reply = site.answer(request)
            first["work"] = request
            assert site.answer(request) == reply
            assert releases(made, 0) == 1
            asked = wire.unpack(wire.unpack(request)["ask"].tobytes())
            moved = {**asked["message"], "global": asked["message"]["global"] + 1}
            assert refused(site.answer(with_ask(request, message=moved))) == "other"
            assert refused(site.answer(with_ask(request, step="nothing"))) == "other"
            assert releases(made, 0) == 1

        def second(request: bytes) -> None:
            site, message = made.sites[0], wire.unpack(request)
            fewer = changed(request, survivors=message["survivors"][:2])
            assert refused(site.answer(fewer)) == "survivors"
            assert refused(site.answer(changed(request, hash=bytes(32)))) == "other"
            shares = {one: share[:-1] + bytes([share[-1] ^ 1]) for one, share in message["shares"].items()}
            assert refused(site.answer(changed(request, shares=shares))) == "share"
            assert refused(site.answer(changed(request, shares={}))) == "share"
            reply = site.answer(request)
            assert refused(reply) == ""
            assert site.answer(request) == reply
            doubled = changed(request, survivors=[*message["survivors"], message["survivors"][0]])
            assert refused(site.answer(doubled)) == "survivors"

        def later(request: bytes) -> None:
            assert refused(made.sites[0].answer(request)) == ""
            assert refused(made.sites[0].answer(first["work"])) == "old"

        probes = [Probe("work", twice), Probe("open", second), Probe("work", later, skip=1)]

        def all_of_them(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
            for probe in probes:
                probe(node, request, lambda: b"")
            return answer()

        assert made.run(all_of_them).rounds_done == 2
        assert releases(made, 0) == 2


def test_another_list_of_survivors_is_refused_once_one_was_named(tmp_path: Path) -> None:
    with federation(tmp_path, 4, minimum_cohort=3) as made:

        def other(request: bytes) -> None:
            site, message = made.sites[0], wire.unpack(request)
            assert refused(site.answer(request)) == ""
            fewer = [one for one in message["survivors"] if one != made.members[3].identity]
            assert refused(site.answer(changed(request, survivors=fewer))) == "survivors"

        assert made.run(Probe("open", other)).rounds_done == 2


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"clip": 0.0}, "bounds"),
        ({"clip": float("inf")}, "bounds"),
        ({"clip": float("nan")}, "bounds"),
        ({"clip": 1e30}, "bounds"),
        ({"clip": -1.0}, "bounds"),
        ({"clip": torch.ones(2)}, "bounds"),
        ({"clip": 1e-9}, "bounds"),
        ({"global": torch.zeros(3)}, "bounds"),
        ({"global": torch.full((650,), float("nan"))}, "bounds"),
        ({"global": "a model"}, "bounds"),
        ({"clip": None}, "bounds"),
    ],
)
def test_bounds_and_models_that_no_rule_allows_are_refused_before_anything_is_paid(
    changes: dict[str, Any], code: str, asked: tuple[Federation, bytes]
) -> None:
    made, request = asked
    message = wire.unpack(wire.unpack(request)["ask"].tobytes())["message"]
    assert refused(made.sites[0].answer(with_ask(request, message={**message, **changes}))) == code
    assert releases(made, 0) == 0


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A federation whose site 0 has been asked for its first work, and has not answered."""
    with federation(tmp_path_factory.mktemp("asked"), 4, minimum_cohort=3) as made:
        found: list[bytes] = []

        def stop(request: bytes) -> None:
            found.append(request)
            raise Dead

        with pytest.raises(Dead):
            made.run(Probe("work", stop))
        yield made, found[0]


def test_cohorts_that_no_rule_allows_are_refused(asked: tuple[Federation, bytes]) -> None:
    made, request = asked
    site, parties = made.sites[0], wire.unpack(wire.unpack(request)["ask"].tobytes())["parties"]
    stranger = [os.urandom(32), public_key(new_key()), bytes(64)]
    forged = [parties[1][0], public_key(new_key()), parties[1][2]]
    (session,) = site.context.sessions.values()
    invented, key = keys.new_identity(), public_key(new_key())
    about = (session.run.encode(), session.terms.identity.encode())
    signing = [keys.public_identity(invented), key, keys.sign(invented, "run key", *about, key)]
    cohorts = {
        "roster": [
            [*parties[:3], stranger],
            [*parties[:3], signing],
            [*parties[:3], parties[2]],
            [parties[0], forged, *parties[2:]],
            parties[1:],
            [[parties[0][0], parties[1][1], parties[0][2]], *parties[1:]],
        ],
        "cohort": [parties[:2], [*parties, stranger], []],
        "message": [[[b"", b"", b""]] * 4, ["a", "b", "c"], "everybody"],
    }
    for code, some in cohorts.items():
        for one in some:
            assert refused(site.answer(with_ask(request, parties=one))) == code, one
    assert releases(made, 0) == 0


def test_requests_that_are_none_are_refused(asked: tuple[Federation, bytes]) -> None:
    made, request = asked
    site = made.sites[0]
    for content in (b"", b"sordino1", request[:-1], request[:100], os.urandom(1000)):
        assert refused(site.answer(content)) == "message"
    for changes in ({"kind": "delete"}, {"kind": []}, {"kind": None}):
        assert refused(site.answer(wire.pack({**wire.unpack(request), **changes}))) == "message"
    assert refused(site.answer(changed(request, protocol=wire.PROTOCOL + 1))) == "protocol"
    for name in ("round", "place", "attempt", "question"):
        for value in (-1, 2**40, "0", 0.5, None):
            assert refused(site.answer(with_ask(request, **{name: value}))) == "message"
    assert refused(site.answer(with_ask(request, round=2))) == "message"  # there are two
    assert refused(site.answer(with_ask(request, run="another"))) == "run"
    assert refused(site.answer(with_ask(request, step="steal"))) == "message"
    assert releases(made, 0) == 0


def test_a_huge_message_is_not_even_read(asked: tuple[Federation, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    made, request = asked
    site = made.sites[0]
    small = site.context.policy.rules.model_copy(update={"max_message_mb": 1})
    monkeypatch.setattr(site.context, "policy", dataclasses.replace(site.context.policy, rules=small))
    monkeypatch.setattr(wire.safetensors, "load", lambda content: pytest.fail("it was read"))
    assert refused_text(site.answer(request + bytes(2**20))) == "message"


def test_experiments_that_no_rule_allows_are_refused(asked: tuple[Federation, bytes]) -> None:
    made, _ = asked
    site = made.sites[0]
    recorder = Recorder()
    with pytest.raises(UserError, match="sites take part"):
        made.run(
            lambda node, request, answer: (
                recorder(node, request, answer)
                if kind(request) == "hello"
                else (
                    recorder.seen.append((node, kind(request), request, b"")) or LOST  # type: ignore[func-returns-value]
                )
            )
        )
    enrol = next(request for node, request, _ in recorder.of("enrol") if node == 0)
    experiment = wire.unpack(enrol)["experiment"]

    def answer(**changes: Any) -> str:
        return refused(site.answer(changed(enrol, experiment={**experiment, **changes}, run=os.urandom(8).hex())))

    assert answer() == ""
    assert answer(method="feddpa") == "experiment"  # not among its methods
    assert answer(method="os:path") == "experiment"
    assert answer(model="antigravity:Network") == "experiment"
    assert answer(set={"this:Class.tau": 1}) == "experiment"
    assert answer(set={"schema": "/etc/passwd"}) == "experiment"
    assert answer(schema="/etc/passwd") == "experiment"
    assert answer(minimum_cohort=10**6) == "experiment"
    assert answer(minimum_cohort=2) == "experiment"  # a sum could show a single message
    assert answer(active_server=False) == "experiment"
    assert answer(epsilon=21.0) == "code"  # another experiment than the server says
    assert answer(labels=["1", "2"]) in ("code", "data")
    assert answer(rounds="many") == "experiment"
    assert answer(variant="paper", set={**experiment["set"], "clipping": "median"}) == "experiment"
    assert refused(site.answer(changed(enrol, number=4))) in ("message", "experiment")
    assert refused(site.answer(changed(enrol, experiment=None))) == "message"


# ---- budgets, disks, ledgers


def leave_budget_for_a_part(made: Federation) -> None:
    """Let all sites allow epsilon 14 of the 20 that the run plans."""
    for number, folder in enumerate(made.folders):
        text = (folder / "site.toml").read_text()
        (folder / "site.toml").write_text(text.replace("max_epsilon = 20.0", "max_epsilon = 14.0"))
        made.reopen(number)


def test_a_server_killed_while_it_saves_a_run_that_ended_early(tmp_path: Path) -> None:
    """Its last checkpoint is of the same round as the one before, which a resumed server needs."""
    with federation(tmp_path, rounds=4) as made, pytest.MonkeyPatch.context() as patched:
        leave_budget_for_a_part(made)
        advance = Store.advance

        def stopped(store: Store, run: str, rounds: int, *rest: Any) -> None:
            if rest[-1] is not None:
                raise KeyboardInterrupt
            advance(store, run, rounds, *rest)

        patched.setattr(Store, "advance", stopped)
        with pytest.raises(Stopped):
            made.run()
        patched.undo()
        (row,) = made.store.all()
        summary = made.resume(row.run)
        assert summary.rounds_done == row.rounds_done
        assert any("ended early" in note for note in summary.notes)


def test_models_of_an_end_that_was_stopped_are_removed(tmp_path: Path) -> None:
    with federation(tmp_path) as made:
        made.run()
        (known,) = (made.folders[0] / "models").iterdir()
        for name in ("other.tmp", "other.safetensors"):
            (made.folders[0] / "models" / name).write_text("half")
        made.reopen(0)
        assert list((made.folders[0] / "models").iterdir()) == [known]


def test_a_run_ends_when_budgets_do(tmp_path: Path) -> None:
    with federation(tmp_path, rounds=4) as made:
        leave_budget_for_a_part(made)
        summary = made.run()
        assert 0 < summary.rounds_done < 4
        assert any("ended early" in note for note in summary.notes)
        mu = sum_up([planned(terms_of(made.experiment))], Unit.CLIENT, summary.delta)["epsilon"]
        assert summary.epsilon["outsider"] >= mu["outsider"] > summary.charged["outsider"]
        for folder in made.folders:
            assert status(folder)["spent"]["outsider"] <= 14
        again = made.run()
        assert again.rounds_done == 0


def test_what_is_planned_is_what_is_spent(tmp_path: Path) -> None:
    with federation(tmp_path) as made:
        summary = made.run()
        assert 19.99 < summary.epsilon["outsider"] <= 20  # type: ignore[operator]
        for folder in made.folders:
            found = status(folder)
            assert found["spent"] == pytest.approx(summary.epsilon, rel=1e-9)
            assert found["promised"] == "outsider"
        assert made.run().rounds_done == 0  # it was allowed once


def test_a_full_disk_lets_nothing_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with federation(tmp_path) as made:

        def full(request: bytes) -> None:
            def failing(self: SiteLedger) -> None:
                raise sqlite3.OperationalError("database or disk is full")

            with monkeypatch.context() as patch:
                patch.setattr(SiteLedger, "_commit", failing)
                assert refused(made.sites[0].answer(request)) == "disk"
            assert releases(made, 0) == 0

        assert made.run(Probe("work", full)).rounds_done == 2


@pytest.mark.parametrize(
    "what",
    [
        "update ledger set content = replace(content, 'local', 'other') where content like '%release%'",
        "delete from ledger where position = 2",
        "delete from ledger",
        "delete from ledger where position = (select max(position) - 1 from ledger)",
        "delete from ledger where position = (select max(position) from ledger)",
    ],
)
def test_an_altered_ledger_closes_the_site(what: str, tmp_path: Path, finished: Federation) -> None:
    folder = tmp_path / "site"
    shutil.copytree(finished.folders[0], folder)
    database = sqlite3.connect(folder / "site.db")
    database.execute(what)
    database.commit()
    database.close()
    # The ledger's own sentence: a missing witness would refuse the folder as well.
    with pytest.raises(AlteredError, match=r"was altered at row|Rows are gone from the end of the ledger"):
        Site.open(folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A federation that has made a run."""
    with federation(tmp_path_factory.mktemp("finished"), noise="integers") as made:
        made.run()
        yield made


def test_a_ledger_altered_while_the_site_is_open_closes_it(tmp_path: Path) -> None:
    with federation(tmp_path, spare_turns=3) as made:

        def alter(request: bytes) -> None:
            database = sqlite3.connect(made.folders[0] / "site.db")
            database.execute("update ledger set content = replace(content, 'release', 'nothing')")
            database.commit()
            database.close()
            assert refused(made.sites[0].answer(request)) == "closed"

        with pytest.raises(UserError, match="too few"):
            made.run(Probe("work", alter, skip=1))


def test_a_ledger_put_back_under_a_running_site_is_noticed_though_the_server_lies(tmp_path: Path) -> None:
    """Its process remembers that the others have confirmed it; they say in the notes of a sum that they know more."""
    with federation(tmp_path, noise="integers", rounds=3) as made:
        codes = []

        def lying(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
            silent, what = changed(request, echo=None), kind(request)
            if node == 0 and what == "work" and is_confirmed(request):
                round = wire.unpack(wire.unpack(request)["ask"].tobytes())["round"]
                if round == 1 and not codes:
                    made.backup(0, tmp_path / "backup")
                elif round == 2 and len(codes) == 2:
                    made.restore(0, tmp_path / "backup", witness=True)
            reply = made.sites[node].answer(silent)
            if node == 0 and what in ("work", "open") and (tmp_path / "backup").exists():
                codes.append((what, refused(reply)))
                if codes[-1] == ("open", "restored"):
                    assert refused(made.sites[0].answer(silent)) == "closed", "for good, whatever is asked"
            return reply

        with pytest.raises(UserError, match="too few sites answered"):
            made.run(lying)
        assert codes[:5] == [("work", ""), ("open", ""), ("work", ""), ("open", "restored"), ("work", "closed")]
        assert status(made.folders[0])["spoiled"]
        assert status(made.folders[0])["spent"]["server"] is None


def test_an_honest_server_notices_a_restored_backup_before_anything_is_asked(tmp_path: Path) -> None:
    with federation(tmp_path, noise="integers") as made:

        def restore(request: bytes) -> None:
            raise Dead

        made.backup(0, tmp_path / "backup")
        with pytest.raises(Dead):
            made.run(Probe("work", restore, skip=1))
        made.restore(0, tmp_path / "backup", witness=True)
        made.reopen(0)
        (row,) = made.store.all()
        with pytest.raises(UserError, match="2 of 3 sites take part"):
            made.resume(row.run)
        with pytest.raises(UserError, match="2 of 3 sites take part"):
            made.run()  # nor does a new run forget
        assert sum("restored from a copy" in sentence for sentence in made.told) == 2


def test_a_site_is_open_once(finished: Federation) -> None:
    with pytest.raises(UserError, match="already open"):
        Site.open(finished.folders[0])


@pytest.mark.usefixtures("one_thread")
def test_two_processes_that_are_asked_at_once_draw_once(tmp_path: Path) -> None:
    with federation(tmp_path) as made:

        def both(request: bytes) -> None:
            children = []
            for name in ("one", "two"):
                child = os.fork()
                if child == 0:
                    try:
                        (tmp_path / name).write_bytes(made.sites[0].answer(request))
                    finally:
                        os._exit(0)
                children.append(child)
            for child in children:
                os.waitpid(child, 0)
            assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes() == made.sites[0].answer(request)
            assert releases(made, 0) == 1

        assert made.run(Probe("work", both)).rounds_done == 2


def test_a_vector_that_no_clip_allows_is_noticed_in_the_sum(tmp_path: Path) -> None:
    with federation(tmp_path, spare_turns=2) as made:

        def poison(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
            reply = answer()
            message = wire.unpack(reply)
            if node == 1 and "vector" in message and wire.unpack(wire.unpack(request)["ask"].tobytes())["attempt"] == 0:
                return changed(reply, vector=message["vector"] + np.uint32(2**30))
            return reply

        assert made.run(poison).rounds_done == 2
        assert any("clips allow" in sentence for sentence in made.told)
        assert [releases(made, number) for number in range(3)] == [4, 4, 4]


def test_personal_models_and_accuracies_stay_at_the_site(finished: Federation) -> None:
    (row,) = finished.store.all()
    assert row.summary is not None
    assert row.summary["deployed"]
    there = load_models(row.run, finished.store.folder)
    assert len(there.personal) == 0
    assert there.shared[0](torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    for number, folder in enumerate(finished.folders):
        (run,) = status(folder)["runs"]
        assert (run["state"], run["rounds"], run["client"]) == ("done", 2, number)
        assert 0 <= run["personal"] <= 1
        assert 0 <= run["global"] <= 1
        models = load_file(folder / run["model"])
        assert models["personal"].shape == (1, 650)
        assert (run["name"], run["run"].partition(" ")[0]) == (row.run, row.run)
        network = models_at(folder).predictor(folder.name)  # as it is used elsewhere
        assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
        assert torch.equal(models["global"], finished.model(finished.store.all()[0].run))
        with SiteLedger(folder) as ledger:
            assert ledger.runs()[0]["key"] is None
            assert ledger.query("select * from asks") == []
