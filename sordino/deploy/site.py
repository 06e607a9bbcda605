"""A site: one client on its own machine, with its own records, rules, ledger and memory.

`Site.answer` maps a message to an answer and never raises. What it sends has been charged, durably, in the same
transaction that keeps it for whoever asks again: a site that is killed before has released nothing, one that is killed
after it sends the same bytes. It answers to one list of survivors of a sum, ever, and is masked once for an ask.

| message | answer |
|---|---|
| hello | who the site is, signed |
| enrol | a key for this run, signed; the experiment must be within `site.toml` |
| work | trip 1: what the step sends, bounded and noised; masked where it is to be summed |
| open | trip 2: what opens the survivors' sum |
| end | the run's keys are destroyed; the final model is kept |
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as loaded
from safetensors.torch import save as saved
from torch import Tensor

from sordino.client import Outcome
from sordino.deploy import keys, masking, reading, summing, wire
from sordino.deploy.book import AlteredError, Ask, Book, BookError, Entry, Head, row_of
from sordino.deploy.creating import create
from sordino.deploy.masking import Cohort, Masker, MaskingError
from sordino.deploy.reading import Work
from sordino.deploy.records import SiteFile, as_declared, keyed_fingerprint, read_records
from sordino.deploy.rules import MEGABYTE, SENTENCES, Allowed, RefusedError, read_rules
from sordino.deploy.session import Session
from sordino.deploy.spending import Spending
from sordino.deploy.terms import Terms, terms_of
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.holding import HeldError, holding
from sordino.experiment.trained import measured
from sordino.learning.metrics import METRICS
from sordino.message import Each
from sordino.privacy.ledger import Row
from sordino.privacy.release import Public, Releases
from sordino.threads import single_threaded

PROTOCOL = 1
LOG = "site.log"
MODELS = "models"
NOTE = struct.Struct(">Q32sQ32s")
"""What goes with a share, unseen by the server: the sender's head, and what it has last seen of the receiver's."""


class Site:
    """A site that is open: its rules and records have been read, and no other process answers for it."""

    def __init__(self, folder: Path, allowed: Allowed, file: SiteFile, held: contextlib.ExitStack) -> None:
        self.folder, self._allowed, self._file, self._held = folder, allowed, file, held
        self._sessions: dict[str, Session] = {}
        with Book(folder) as book:
            self._private = book.known("identity")
            self._secret = book.known("secret")
            self._take_stock(book)
        self.name, self.identity = allowed.rules.name, keys.public_identity(self._private)

    @classmethod
    def open(cls, folder: Path) -> Site:
        """Open the site in a folder; one that another process has opened, or whose ledger was altered, is refused."""
        allowed = read_rules(folder)
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(holding(folder / "lock"))
            except HeldError as error:
                raise UserError(f"The site in {folder} is already open in another process.") from error
            return cls(folder, allowed, read_records(folder, allowed.rules), held.pop_all())

    @classmethod
    def create(cls, folder: Path, name: str, data: Path, *, label: str | None = None, **rules: Any) -> bytes:
        """Make a site: its rules in `site.toml`, a new identity and an empty ledger; its public key."""
        return create(folder, name, data, label, rules)

    def close(self) -> None:
        """Let another process answer for the site."""
        self._held.close()

    def answer(self, request: bytes) -> bytes:
        """What the site answers to a message. It never raises, and says why it refuses in a fixed sentence only."""
        handlers: dict[str, Callable[[Mapping[str, Any]], bytes]] = {
            "hello": self._hello,
            "enrol": self._enrol,
            "work": self._work,
            "open": self._open,
            "end": self._end,
        }
        try:
            message = wire.unpacked(request, self._allowed.rules.max_message_mb * MEGABYTE)
            handler = handlers.get(str(message.get("kind")))
            if handler is None:
                raise RefusedError("message", "it has no known kind")
            if message.get("protocol") != PROTOCOL:
                raise RefusedError("protocol", f"its version is {message.get('protocol')!r:.20}")
            return handler(message)
        except RefusedError as refused:
            return self._refusal(refused.code, refused.detail)
        except wire.WireError as error:
            return self._refusal("message", error)
        except AlteredError as error:
            return self._refusal("closed", error)
        except BookError as error:
            return self._refusal("disk", error)
        except Exception:  # whatever goes wrong at a site, its text may tell of the data
            return self._refusal("failed", traceback.format_exc())

    def _refusal(self, code: str, detail: object) -> bytes:
        with contextlib.suppress(OSError), (self.folder / LOG).open("a") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} refused: {SENTENCES[code]} {detail}\n")
        return wire.packed({"ok": False, "code": code, "sentence": SENTENCES[code]})

    def _take_stock(self, book: Book) -> None:
        """Look whether the ledger is as it was written; note that the data have changed, where they have."""
        entries = book.entries()
        now = keyed_fingerprint(self._file, self._secret)
        noted = [entry.content["data"] for entry in entries if "data" in entry.content]
        if noted[-1] != now:
            with book.transaction():
                book.append([Entry("data", {"data": now})])

    # ---- hello, enrol

    def _hello(self, message: Mapping[str, Any]) -> bytes:
        challenge = reading.bytes_of(message, "challenge", 32)
        signature = keys.signed(self._private, "hello", challenge)
        return reading.answered(identity=self.identity, signature=signature, package=keys.package_hash())

    def _enrol(self, message: Mapping[str, Any]) -> bytes:
        run, identity = reading.text(message, "run"), reading.text(message, "identity")
        number, carried = reading.count(message, "number"), message.get("experiment")
        if not isinstance(carried, dict):
            raise RefusedError("message", "it has no experiment")
        with Book(self.folder) as book:
            self._check_open(book, message)
            known = book.run(run)
            if known is None:
                terms = self._check_terms(carried, identity, number)
                with book.transaction():
                    if book.run(run) is None:
                        book.enrol(run, json.dumps(carried), identity, number, masking.new_key())
                known = book.run(run)
                assert known is not None
                self._sessions[run] = self._begun(run, terms, known)
            if (known["identity"], known["number"]) != (identity, number):
                raise RefusedError("experiment", "the run was enrolled with another experiment or number")
            if known["state"] != "open":
                raise RefusedError("run", "it is over")
            key = masking.public_key(known["key"])
            signature = keys.signed(self._private, "run key", run.encode(), identity.encode(), key)
            return reading.answered(key=key, signature=signature, head=book.head().packed())

    def _check_terms(self, carried: Mapping[str, Any], identity: str, number: int) -> Terms:
        """The terms of an experiment that the server wants to run, worked out here, if the rules allow it."""
        self._allowed.check_experiment(carried)
        try:
            terms = terms_of(Experiment.make(carried))
        except UserError as error:
            raise RefusedError("experiment", error) from error
        self._allowed.check_terms(terms)
        if terms.identity != identity:
            raise RefusedError("code", "identities differ")
        if number >= terms.schedule.clients:
            raise RefusedError("message", "there is no such client")
        data = as_declared(self._file, terms, self._allowed.rules, self._secret)
        try:
            terms.method.check_data(data.people)
            terms.at_site(number, int(data.train.sizes[number]))
        except UserError as error:
            raise RefusedError("experiment", error) from error
        return terms

    def _session(self, book: Book, run: str) -> Session:
        """A run that this site takes part in."""
        known = book.run(run)
        if known is None or known["state"] != "open":
            raise RefusedError("run", f"{run[:50]!r}")
        if run not in self._sessions:
            number = int(known["number"])
            terms = self._check_terms(json.loads(known["experiment"]), known["identity"], number)
            self._sessions[run] = self._begun(run, terms, known)
        return self._sessions[run]

    def _begun(self, run: str, terms: Terms, known: Mapping[str, Any]) -> Session:
        data = as_declared(self._file, terms, self._allowed.rules, self._secret)
        return Session.of(run, terms, int(known["number"]), bytes(known["key"]), data, self._secret)

    # ---- trip 1

    def _work(self, message: Mapping[str, Any]) -> bytes:
        work, seconds = reading.work(message), time.monotonic()
        with Book(self.folder) as book:
            session = self._session(book, work.ask.run)
            work = self._as_asked(work, message, session)
            kept = self._kept(book, work)
            if kept is not None:
                return kept
            self._check_open(book, message)
            releases, public = session.checked(work, self._allowed)
            cohort = session.cohort(work, releases, self._allowed, self.identity)
            self._check_budget(book, session, session.charged(work, releases, public))
            state = self._state(book, work.ask, session)
            with single_threaded():
                outcome = session.answered(work, state)
                accuracies = session.accuracies(work.ask.round, outcome)
            reply = self._committed(book, work, session, releases, public, cohort, outcome, state, accuracies)
        self._note(f"answered {work.step} of round {work.ask.round + 1} in {time.monotonic() - seconds:.1f} s")
        return reply

    def _as_asked(self, work: Work, message: Mapping[str, Any], session: Session) -> Work:
        """The question with what this client alone is told."""
        content = reading.array(message, "own").tobytes()
        own = wire.unpacked(content) if content else {}
        if not all(isinstance(value, Tensor) and len(value) == 1 for value in own.values()):
            raise RefusedError("message", "what it tells this site alone is not one row each")
        many = session.terms.schedule.clients
        rows = {name: Each(value.expand(many, *value.shape[1:])) for name, value in own.items()}
        hash = hashlib.sha256(work.hash + hashlib.sha256(content).digest()).digest()
        return Work(work.ask, hash, work.number, work.step, {**work.message, **rows}, work.parties)

    def _kept(self, book: Book, work: Work) -> bytes | None:
        """The answer that was given to this question before."""
        kept = book.ask(work.ask)
        if kept is not None:
            if bytes(kept["hash"]) != work.hash:
                raise RefusedError("other")
            return bytes(kept["reply"])
        last = book.last(work.ask.run)
        if last is not None and work.ask.order < last:
            raise RefusedError("old", f"{work.ask.order} after {last}")
        return None

    def _check_budget(self, book: Book, session: Session, entries: Sequence[Entry]) -> list[Entry]:
        """Refuse what would cost more than is allowed; what is to be written down where it would not."""
        rules, before = self._allowed.rules, book.entries()
        of_records = any(row_of(entry).pool for entry in entries)
        known = {entry.content["run"] for entry in before if entry.kind == "reserve"}
        reserved = [session.reservation()] if of_records and session.run not in known else []
        spending = Spending.of([*before, *reserved, *entries], self._allowed.view)
        if spending.spoiled:
            raise RefusedError("closed", "there may be another ledger of these data")
        if entries and not spending.fits(rules.unit, rules.max_epsilon, rules.max_delta):
            now = spending.epsilon(rules.unit, rules.max_delta)
            raise RefusedError("budget", f"epsilon would be {now:g}, and {rules.max_epsilon:g} is allowed")
        if of_records:
            self._check_turns(before, session, [row_of(entry) for entry in entries])
        return [*reserved, *entries]

    def _check_turns(self, before: Sequence[Entry], session: Session, rows: Sequence[Row]) -> None:
        """Refuse to release anything of records more often than was reserved for."""
        paid = [row_of(one) for one in before if one.kind == "release" and one.content["ask"][0] == session.run]
        for row in rows:
            if row.pool and sum(one.release == row.release for one in paid) >= session.most(row):
                raise RefusedError("budget", f"{row.release} has left as often as was reserved for")

    def _state(self, book: Book, ask: Ask, session: Session) -> dict[str, Tensor]:
        """What the site remembered before this question."""
        content = book.memory(ask)
        return dict(session.blank) if content is None else loaded(content)

    def _committed(
        self,
        book: Book,
        work: Work,
        session: Session,
        releases: Releases,
        public: Public,
        cohort: Cohort | None,
        outcome: Outcome,
        state: dict[str, Tensor],
        accuracies: list[float | None] | None,
    ) -> bytes:
        """Charge, keep and remember in one transaction; then, and only then, there is an answer.

        Whoever finds that another process has answered meanwhile drops its own draw.
        """
        with book.transaction():
            kept = self._kept(book, work)
            if kept is not None:
                return kept
            book.append(self._check_budget(book, session, session.charged(work, releases, public)))
            head = book.head()
            content: dict[str, Any] = {"head": head.packed(), "kept": bool(outcome.kept)}
            if cohort is None:
                content["values"] = outcome.passed.values
            else:
                masked = Masker(cohort, self.identity, session.key).masked(
                    summing.as_row(outcome.passed.values, releases),
                    summing.bits(releases, session.gate, public, len(cohort.parties)),
                    self._notes(book, cohort, head),
                )
                content |= {"vector": masked.vector, "shares": masked.shares}
            reply = reading.answered(**content)
            book.keep(work.ask, work.hash, reading.written_parties(work), reply)
            if outcome.kept:
                times = state["participations"] + 1
                rows = {name: value[0].cpu().contiguous() for name, value in outcome.kept.items()}
                book.remember(work.ask, saved({**rows, "participations": times}))
            if accuracies is not None:
                book.evaluated(work.ask.run, work.ask.round, *accuracies)
        return reply

    def _notes(self, book: Book, cohort: Cohort, head: Head) -> dict[bytes, bytes]:
        """For each site of a cohort: where this ledger ends, and where that one's did when it was last heard of."""
        found = {}
        for party in cohort.parties:
            seen = book.seen(party.identity) or Head(0, bytes(32))
            found[party.identity] = NOTE.pack(head.position, head.link, seen.position, seen.link)
        return found

    # ---- trip 2

    def _open(self, message: Mapping[str, Any]) -> bytes:
        ask, hash = reading.ask(message), reading.bytes_of(message, "hash", 32)
        survivors, shares = message.get("survivors"), message.get("shares")
        if not reading.are_identities(survivors) or not isinstance(shares, dict):
            raise RefusedError("message", "it names no survivors or has no shares")
        if not all(isinstance(one, bytes) and isinstance(share, bytes) for one, share in shares.items()):
            raise RefusedError("message", "its shares are none")
        assert isinstance(survivors, list)
        with Book(self.folder) as book:
            session = self._session(book, ask.run)
            self._check_open(book, message)
            try:
                with book.transaction():
                    return self._opened(book, ask, hash, survivors, shares, session)
            except _BehindError as behind:
                with book.transaction():
                    book.append([Entry("spoiled", {"why": str(behind)})])
                raise RefusedError("restored", behind) from behind

    def _opened(
        self, book: Book, ask: Ask, hash: bytes, survivors: list[bytes], shares: dict[bytes, bytes], session: Session
    ) -> bytes:
        kept = book.ask(ask)
        if kept is None:
            raise RefusedError("old", "nothing is kept of this question")
        if bytes(kept["hash"]) != hash or not kept["parties"]:
            raise RefusedError("other")
        parties = reading.parties(wire.unpacked(bytes(kept["parties"])))
        cohort = Cohort(hash, tuple(party for party, _ in parties), session.terms.minimum)
        try:
            cohort.check_survivors(survivors)
            named = b"".join(one.identity for one in cohort.parties if one.identity in survivors)
        except MaskingError as error:
            raise RefusedError("survivors", error) from error
        if kept["survivors"] is not None:
            if bytes(kept["survivors"]) != named:
                raise RefusedError("survivors", "others were named before")
            return bytes(kept["opening"])
        masker = Masker(cohort, self.identity, session.key)
        try:
            for one in survivors:
                self._check_note(book, one, masker.share_from(one, shares.get(one, b"")).note)
            opening = masker.opening(survivors, shares)
        except MaskingError as error:
            raise RefusedError("share", error) from error
        reply = reading.answered(shares=opening.shares, seeds=opening.seeds)
        book.open(ask, named, reply)
        return reply

    def _check_note(self, book: Book, sender: bytes, note: bytes) -> None:
        """Compare what another site has seen of this ledger with it, and remember what it says of its own."""
        if len(note) != NOTE.size:
            raise MaskingError("A share's note is not of the right length.")
        position, link, seen, known = NOTE.unpack(note)
        if seen and book.link(seen) != known:
            raise _BehindError(f"another site has seen row {seen - 1} of this ledger otherwise, or it is not there")
        book.see(sender, Head(position, link))

    # ---- the end

    def _end(self, message: Mapping[str, Any]) -> bytes:
        run, model = reading.text(message, "run"), message.get("model")
        with Book(self.folder) as book:
            known = book.run(run)
            if known is not None and known["state"] == "done":
                return reading.answered()
            session = self._session(book, run)
            if model is not None and (not isinstance(model, Tensor) or model.shape != session.terms.initial.shape):
                raise RefusedError("bounds", "the model is not of this network's size")
            content, tensors = book.latest(run), {"clients": torch.tensor([session.number])}
            if content is not None:
                tensors["personal"] = loaded(content)["model"].reshape(1, -1)
            if model is not None:
                tensors["global"] = model.float()
            path = self.folder / MODELS / f"{hashlib.sha256(run.encode()).hexdigest()[:16]}.safetensors"
            path.parent.mkdir(exist_ok=True)
            numbers = [str(number) for number in range(session.terms.schedule.clients)]
            tensors |= measured(np.full((len(numbers), len(METRICS)), np.nan))
            path.write_bytes(saved(tensors, session.terms.described(run, numbers).metadata()))
            with single_threaded():
                final = session.accuracy(model)
            with book.transaction():
                book.end(run, final, str(path.relative_to(self.folder)))
        self._sessions.pop(run, None)
        self._note(f"the run {run} is over")
        return reading.answered()

    # ---- what every message is checked for

    def _check_open(self, book: Book, message: Mapping[str, Any]) -> None:
        """Refuse where this ledger may not be the only one of these data."""
        if any(entry.kind == "spoiled" for entry in book.entries()):
            raise RefusedError("closed", "there may be another ledger of these data")
        if message.get("echo") is None:
            return
        try:
            echo = Head.read(message["echo"])
        except ValueError as error:
            raise RefusedError("message", error) from error
        if echo.position and book.link(echo.position) != echo.link:
            raise RefusedError("restored", f"the server has seen row {echo.position - 1} of this ledger otherwise")

    def _note(self, text: str) -> None:
        with contextlib.suppress(OSError), (self.folder / LOG).open("a") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


class _BehindError(Exception):
    """Others know more of this site's ledger than it does itself."""
