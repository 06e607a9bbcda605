"""How a site answers to `hello` and `enrol`: who it is, and whether it takes part in a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sordino.deploy.protocol import keys, secure_sum
from sordino.deploy.site import requests
from sordino.deploy.site.context import Desk
from sordino.deploy.site.data import as_declared
from sordino.deploy.site.freshness import check_only_one
from sordino.deploy.site.ledger import Book
from sordino.deploy.site.rules import RefusedError
from sordino.deploy.site.session import Session
from sordino.deploy.site.status import telling
from sordino.deploy.terms import DeployedTerms, terms_of
from sordino.errors import UserError
from sordino.experiment.config import Experiment


def hello(desk: Desk, message: Mapping[str, Any]) -> bytes:
    """Who the site is: it signs what the server has just made up."""
    challenge = requests.bytes_of(message, "challenge", 32)
    signature = keys.signed(desk.private, "hello", challenge)
    return requests.answered(identity=desk.identity, signature=signature, package=keys.package_hash())


def enrol(desk: Desk, message: Mapping[str, Any]) -> bytes:
    """Take part in a run: a key for it, made once and signed."""
    run, identity = requests.text(message, "run"), requests.text(message, "identity")
    number, carried = requests.count(message, "number"), message.get("experiment")
    if not isinstance(carried, dict):
        raise RefusedError("message", "it has no experiment")
    with Book(desk.folder) as book:
        check_only_one(book, message)
        known, terms = book.run(run), None
        if known is None:
            terms = _checked_terms(desk, book, carried, identity, number)
            with book.transaction():
                if book.run(run) is None:
                    book.enrol(run, json.dumps(carried), identity, number, secure_sum.new_key())
            known = book.run(run)
            assert known is not None
        if (known["identity"], known["number"]) != (identity, number):
            raise RefusedError("experiment", "the run was enrolled with another experiment or number")
        if known["state"] != "open":
            raise RefusedError("run", "it is over")
        if terms is not None:  # of the run that is written down: another process may have been quicker
            desk.sessions[run] = _begun(desk, run, terms, known)
        key = secure_sum.public_key(known["key"])
        signature = keys.signed(desk.private, "run key", run.encode(), identity.encode(), key)
        return requests.answered(key=key, signature=signature, head=book.head().packed())


def session_of(desk: Desk, book: Book, run: str) -> Session:
    """A run that this site takes part in."""
    known = book.run(run)
    if known is None or known["state"] != "open":
        raise RefusedError("run", f"{run[:50]!r}")
    if run not in desk.sessions:
        number = int(known["number"])
        terms = _checked_terms(desk, book, json.loads(known["experiment"]), known["identity"], number)
        desk.sessions[run] = _begun(desk, run, terms, known)
    return desk.sessions[run]


def _checked_terms(desk: Desk, book: Book, carried: Mapping[str, Any], identity: str, number: int) -> DeployedTerms:
    """The terms of an experiment that the server wants to run, worked out here, if the rules allow it."""
    desk.allowed.check_experiment(carried)
    try:
        experiment = Experiment.make(carried)
        if experiment.build_method().files():
            raise RefusedError("experiment", "it names a file, and no file is opened for a server")
        terms = terms_of(experiment)
    except UserError as error:
        raise RefusedError("experiment", error) from error
    desk.allowed.check_terms(terms)
    if terms.identity != identity:
        raise RefusedError("code", "identities differ")
    if number >= terms.schedule.clients:
        raise RefusedError("message", "there is no such client")
    with telling(book, desk.allowed, terms.identity):
        data = as_declared(desk.file, terms, desk.allowed.rules, desk.secret)
        try:
            terms.method.check_data(data.people)
            terms.at_site(number, int(data.train.sizes[number]))
        except UserError as error:
            raise RefusedError("data", error) from error
    for sentence in data.disclosed:
        desk.note(f"{sentence} This stays here.")
    return terms


def _begun(desk: Desk, run: str, terms: DeployedTerms, known: Mapping[str, Any]) -> Session:
    data = as_declared(desk.file, terms, desk.allowed.rules, desk.secret)
    return Session.of(run, terms, int(known["number"]), bytes(known["key"]), data, desk.secret)
