"""A site's answers to `hello` (who it is) and `enrol` (whether it takes part in a run)."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from sordino.deploy.app import AppUpdate
from sordino.deploy.protocol import keys, secure_sum
from sordino.deploy.protocol.versions import upgrade_advice
from sordino.deploy.server.dry_run import try_script
from sordino.deploy.site import requests
from sordino.deploy.site.app import AppSession
from sordino.deploy.site.data import encode_records
from sordino.deploy.site.freshness import check_single_ledger
from sordino.deploy.site.ledger import SiteLedger
from sordino.deploy.site.rules import RefusedError, SitePolicy
from sordino.deploy.site.session import Session, SiteContext, limit_data_refusals, reservation_entry
from sordino.deploy.site.spending import check_reservation
from sordino.deploy.terms import DeployedTerms, terms_of
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.features.extractor import MAX_EXTRACTOR_BYTES
from sordino.federation.server import Ground
from sordino.privacy.gate import Gate
from sordino.privacy.mechanism import MECHANISMS
from sordino.privacy.noise import Seeded
from sordino.privacy.release import Public, due
from sordino.util.files import read_file
from sordino.util.package import package_hash
from sordino.version import VERSION

ONLY_ITS_VERSION = "A run goes on only under the version that began it: finish it there, or begin a new one."


def answer_hello(context: SiteContext, message: Mapping[str, Any]) -> bytes:
    """Answer `hello`: prove the site's identity by signing the server's challenge."""
    challenge = requests.read_bytes(message, "challenge", 32)
    signature = keys.sign(context.private, "hello", challenge)
    about = {"package": package_hash(), "version": VERSION}
    return requests.ok_reply(identity=context.identity, signature=signature, **about)


def answer_enrol(context: SiteContext, message: Mapping[str, Any]) -> bytes:
    """Answer `enrol`: take part in a run, with a signed X25519 key that is made once for it."""
    run, identity = requests.read_text(message, "run"), requests.read_text(message, "identity")
    number, carried = requests.read_count(message, "number"), message.get("experiment")
    if not isinstance(carried, dict):
        raise RefusedError("message", "its experiment is not a table")
    advice = upgrade_advice(VERSION, message.get("version"))
    with SiteLedger(context.folder) as ledger:
        check_single_ledger(ledger, message)
        known, terms = ledger.run(run), None
        if known is None:
            terms = _derive_allowed_terms(context, ledger, carried, identity, number, advice)
            if terms.allowance.record_sums is not None:  # its cost does not depend on the site's records
                check_reservation(ledger.entries(), reservation_entry(run, terms, number), context.policy)
            with ledger.transaction():
                if ledger.run(run) is None:
                    ledger.enrol(run, json.dumps(carried), identity, number, secure_sum.new_key())
            known = ledger.run(run)
            assert known is not None
        if (known["identity"], known["number"]) != (identity, number):
            raise RefusedError(
                "experiment", "the site is enrolled in this run with another experiment or client number"
            )
        if known["state"] != "open":
            raise RefusedError("run", "the run is over")
        if terms is not None:  # from the stored row: another process may have been quicker
            context.sessions[run] = _open_session(context, run, terms, known)
        key = secure_sum.public_key(known["key"])
        signature = keys.sign(context.private, "run key", run.encode(), identity.encode(), key)
        return requests.ok_reply(key=key, signature=signature, head=ledger.head().to_list())


def get_session(context: SiteContext, ledger: SiteLedger, run: str) -> Session:
    """Session of a run that this site takes part in; opened again after a restart."""
    known = ledger.run(run)
    if known is None or known["state"] != "open":
        raise RefusedError("run", f"the site is not enrolled in {run[:50]!r}, or that run is over")
    if run not in context.sessions:
        number = int(known["number"])
        carried, identity = json.loads(known["experiment"]), known["identity"]
        terms = _derive_allowed_terms(context, ledger, carried, identity, number, ONLY_ITS_VERSION)
        context.sessions[run] = _open_session(context, run, terms, known)
    return context.sessions[run]


def _derive_allowed_terms(
    context: SiteContext, ledger: SiteLedger, carried: Mapping[str, Any], identity: str, number: int, advice: str
) -> DeployedTerms:
    """Derive the terms of an experiment with the site's own code; refuse those that rules or data do not allow.

    Args:
        context: The site's context.
        ledger: The site's ledger, which counts refusals because of the data.
        carried: The experiment as the server sent it.
        identity: Hash of the server's terms, which the site's must equal.
        number: Client number of this site.
        advice: Sentence for the owner on what to do where the server's terms are others.
    """
    context.policy.check_experiment(carried)
    try:
        experiment = Experiment.make(carried)
        if experiment.build_method().files():
            raise RefusedError("experiment", "it names a file, but a site opens no file that a server names")
        terms = terms_of(experiment, functools.partial(_read_weights, context))
    except UserError as error:
        raise RefusedError("experiment", error) from error
    if number >= terms.schedule.clients:
        raise RefusedError(
            "message", f"client {number} does not exist; valid numbers are 0 to {terms.schedule.clients - 1}"
        )
    context.policy.check_terms(terms, number)
    if terms.identity != identity:
        raise RefusedError("code", f"They do not run the same code. {advice}", version=VERSION)
    check_first_questions(terms, number, context.policy)
    with limit_data_refusals(ledger, context.policy, terms.identity):
        data = encode_records(context.file, terms, context.policy.rules, context.secret, context.folder)
        try:
            terms.method.check_data(data.people)
            terms.at_site(number, int(data.train.units[number]))
        except UserError as error:
            raise RefusedError("data", error) from error
    for sentence in data.disclosed:
        context.log(f"{sentence} This stays at the site.")
    return terms


def _read_weights(context: SiteContext, digest: str) -> bytes | None:
    """Content of that of the site's `feature_files` which has a digest; None where there is none."""
    for path in context.policy.rules.feature_files or ():
        with contextlib.suppress(OSError):
            content = read_file(context.folder / path, MAX_EXTRACTOR_BYTES)
            if hashlib.sha256(content).hexdigest() == digest:
                return content
    return None


def check_first_questions(terms: DeployedTerms, number: int, policy: SitePolicy) -> None:
    """Refuse an experiment of which a question of the first round would be refused, as for its clipping threshold.

    Only for sums over all sites' records: of other methods the first question tells that, before anything is paid.

    Args:
        terms: Terms of the experiment.
        number: Client number of this site.
        policy: The site's rules and roster.
    """
    if terms.allowance.record_sums is None or terms.method.needs_public():
        return
    gate = Gate(terms.allowance, Seeded(0), MECHANISMS["integers"])  # it draws nothing
    ground = Ground(terms.learner.layout, math.prod(terms.shape), terms.learner.task, None)
    try:
        asked = try_script(terms, gate, ground, rounds=1)
    except UserError as error:
        raise RefusedError("experiment", error) from error
    for question in asked:
        public = Public(question.message, [number], {}, terms.learner.layout.layers)
        policy.check_question(terms, due(terms.declared[question.step], question.round), public, gate)


def _open_session(context: SiteContext, run: str, terms: DeployedTerms, known: Mapping[str, Any]) -> Session:
    data = encode_records(context.file, terms, context.policy.rules, context.secret, context.folder)
    made = Session.of(run, terms, int(known["number"]), bytes(known["key"]), data, context.secret)
    return AppSession.over(made, context) if isinstance(terms.method, AppUpdate) else made
