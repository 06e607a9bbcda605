"""A site's folder that was damaged: it does not open, with a sentence, or it answers as it did, or it refuses."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from federations import QUICK, Federation, Recorder, changed, federation, kind, refused
from kill_points import template
from safetensors.torch import load_file

from sordino.deploy.database import AlteredError, CheckedDatabase
from sordino.deploy.protocol import wire
from sordino.deploy.protocol.carrier import Failure, InProcessCarrier
from sordino.deploy.server.coordinator import resume, start
from sordino.deploy.server.journal import FILE, SITES_OF_2, DeploymentJournal, EnrolledSite
from sordino.deploy.site.freshness import LedgerStatement, Note
from sordino.deploy.site.ledger import SiteLedger
from sordino.deploy.site.site import Site
from sordino.deploy.site.status import status
from sordino.errors import UserError
from sordino.store.store import Store

FLIPS = int(os.environ.get("SORDINO_FUZZ", "120")) // 10
"""Of the ledger, each in a copy of its own."""
Stopped = tuple[Federation, list[tuple[bytes, bytes]]]


class Gone(BaseException):
    """A server that is gone."""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stopped]:
    """A federation in its second round, whose site 0 has answered and is closed; what it was asked there, and answered,
    the question of the round after it unanswered."""
    with federation(tmp_path_factory.mktemp("stopped"), 3, rounds=3) as made:
        seen = Recorder()

        def stop(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
            if kind(request) == "work" and wire.unpack(wire.unpack(request)["ask"].tobytes())["round"] == 2:
                seen.seen.append((node, "next", request, b""))
                raise Gone
            return seen(node, request, answer)

        with pytest.raises(Gone):
            made.run(stop)
        made.sites[0].close()
        asked = [[one for node, *one in seen.of(what) if node == 0][-1] for what in ("work", "open", "next")]
        yield made, [(request, reply) for request, reply in asked]


def flipped(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]


@contextlib.contextmanager
def one_sentence(what: str) -> Iterator[None]:
    """Whatever goes wrong here is told in one sentence, and nothing else."""
    told = ""
    try:
        yield
    except UserError as error:
        told = str(error)
    assert "\n" not in told, what


def ask(made: Federation, site: Site, request: bytes) -> bytes:
    """Ask a copy of site 0; the others confirm its ledger, and forget that they have for the next copy."""
    reply = wire.unpack(site.answer(request))
    if reply.get("code") != "unconfirmed":
        return wire.pack(reply)
    said = LedgerStatement.from_list(reply["statement"])
    about = (said.nonce, site.identity, said.head, said.heads_signature, 0)
    notes = {one.identity: Note.sign(one.context.private, *about).to_list() for one in made.sites[1:]}
    return site.answer(changed(request, notes=notes))


def holds(made: Federation, folder: Path, asked: list[tuple[bytes, bytes]], what: str) -> None:
    """Nothing but a sentence, the same bytes, or a refusal comes of a folder; what leaves has been paid for."""
    with contextlib.ExitStack() as open_, one_sentence(what):
        site = open_.enter_context(contextlib.closing(Site.open(folder)))
        for request, reply in asked:
            found = ask(made, site, request)
            if refused(found):
                assert set(wire.unpack(found)) == {"ok", "code", "sentence"}, what
            elif reply:
                assert found == reply, f"{what}: another answer to the same question"
            else:
                with SiteLedger(folder) as ledger:
                    paid = [one.content["ask"][1:] for one in ledger.entries() if one.kind == "release"]
                assert paid[-1] == [2, 0, 0], f"{what}: a release that nobody paid for"
                assert len(paid) == 3, what
        status(folder)


def copied(made: Federation, folder: Path) -> Path:
    """A copy of site 0 and of its witness."""
    shutil.copytree(made.folders[0], folder / "site")
    shutil.copytree(made.witness(0).parent, folder / "witness")
    return folder / "site"


@pytest.mark.parametrize("name", ["site.toml", "roster.toml", "data.npz", "site.db"])
def test_a_damaged_file_never_makes_a_site_draw_again_or_pay_nothing(
    name: str, stopped: Stopped, tmp_path: Path
) -> None:
    made, asked = stopped
    whole, chance = (made.folders[0] / name).read_bytes(), random.Random(0)
    damaged: dict[str, bytes | None] = {
        "as it was": whole,
        "gone": None,
        "emptied": b"",
        "half": whole[: len(whole) // 2],
        "a byte less": whole[:-1],
        "zeros": bytes(len(whole)),
    }
    many = FLIPS if name == "site.db" else 3
    damaged |= {f"flip {number}": flipped(whole, chance) for number in range(many)}
    for what, content in damaged.items():
        folder = copied(made, tmp_path / "copy")
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content)
        holds(made, folder, asked, f"{name}, {what}")
        shutil.rmtree(tmp_path / "copy")


@pytest.mark.usefixtures("one_thread")
def test_a_disk_that_is_really_full_lets_nothing_leave(stopped: Stopped, tmp_path: Path) -> None:
    made, asked = stopped
    folder = copied(made, tmp_path)
    child = os.fork()
    if child == 0:
        code = "nothing"
        try:
            site = Site.open(folder)
            most = (folder / "site.db").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (most // 4, resource.RLIM_INFINITY))  # no room for its journal
            code = refused(ask(made, site, asked[-1][0]))
        finally:
            os._exit({"disk": 0}.get(code, 1))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with SiteLedger(folder) as ledger:
        assert [one.content["ask"][1] for one in ledger.entries() if one.kind == "release"] == [0, 1]
    holds(made, folder, asked, "when there is room again")


@pytest.mark.slow
def test_a_damaged_journal_gives_the_same_model_or_a_sentence(tmp_path: Path) -> None:
    """A flipped bit in what the server wrote down of its questions: a sum of others is never taken for theirs."""
    made = template(tmp_path / "template")
    store, folders = made.copied(tmp_path / "stopped")

    def stop(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
        if kind(request) == "open" and wire.unpack(request)["round"] == 1 and node == 2:
            raise Gone
        return answer()

    with contextlib.ExitStack() as held:
        sites = [held.enter_context(contextlib.closing(Site.open(one))) for one in folders]
        with pytest.raises(Gone):
            start(made.experiment, made.members, InProcessCarrier(sites, stop), store, deadlines=QUICK)
    store.close()
    chance, same = random.Random(0), 0
    for number in range(min(FLIPS, 100)):
        place = tmp_path / "flipped"
        shutil.copytree(tmp_path / "stopped", place)
        (journal,) = place.glob("store/runs/*/deployment.db")
        journal.write_bytes(flipped(journal.read_bytes(), chance) if number else journal.read_bytes())
        with contextlib.ExitStack() as held, one_sentence(f"flip {number}"):
            sites = [
                held.enter_context(contextlib.closing(Site.open(place / "sites" / one.parts[-1]))) for one in folders
            ]
            runs = Store(place / "store")
            held.callback(runs.close)
            (row,) = runs.all()
            resume(row.run, InProcessCarrier(sites), runs, deadlines=QUICK)
            assert torch.equal(load_file(runs.path(row.run) / "models.safetensors")["global"], made.model)
            same += 1
        shutil.rmtree(place)
    assert same > 0


def test_a_journal_of_version_2_is_brought_up_to_date(tmp_path: Path) -> None:
    """Its rows are checked as they were written; one that was altered is still refused."""
    sites = [EnrolledSite(bytes([number]) * 32, b"key", b"signature") for number in (2, 1)]
    DeploymentJournal(tmp_path).close()

    def write_as_before(key: bytes) -> None:
        with CheckedDatabase(tmp_path / FILE) as old:
            old.execute("drop table sites")
            old.execute(SITES_OF_2.creation_sql())
            for site in sites:
                old.upsert(SITES_OF_2, **vars(site), position=3, head=b"link")
            old.execute("update sites set key = ?", key)
            old.execute("pragma user_version = 2")

    write_as_before(b"key")
    for _ in range(2):
        with DeploymentJournal(tmp_path) as journal:
            assert journal.enrolled_sites() == sites
    write_as_before(b"other")
    for _ in range(2):
        with pytest.raises(AlteredError, match="a row of its table sites"):
            DeploymentJournal(tmp_path)
