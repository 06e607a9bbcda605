"""Break the code of privacy and of methods on purpose, one line at a time, and see that the tests notice.

    python tests/mutants.py [--resume] [--jobs N] [WORD...]

Each mutant is a text replacement in a copy of the package. The test that caught it the last time runs first
(tests/killers.json); where that passes, the tests that should notice, then all of the privacy tests, then the methods'
and the contract battery. A mutant that no test kills is a hole in the suite: the script then ends with exit code 1, and
likewise where tests hang or die and none fails. With words, only mutants are tried whose name or file has one of them.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from mutating import CAUGHT, Mutant, Runner

ROOT = Path(__file__).resolve().parent.parent
HEAVY = (
    "dp_accounting.pld",
    "dp_accounting.rdp",
    "hypothesis",
    "jinja2",
    "pydantic",
    "rich.progress",
    "rich.table",
    "safetensors.torch",
    "scipy.stats",
    "sklearn.isotonic",
    "sqlite3",
    "torch.func",
    "typer",
)
"""What tests import besides the package itself: once, and not in each of a thousand forks."""
LATER = ("tests/privacy", "tests/methods tests/test_contract.py tests/test_own_methods.py tests/test_devices.py")
"""What runs where the tests that should notice do not."""

# File of the package: the tests that should notice, then each mutant's name, a text and what replaces its first place.
BY_FILE: list[tuple[str, str, list[tuple[str, str, str]]]] = [
    (
        "flower/mod.py",
        "tests/flower/test_mod.py",
        [
            (
                "a node answers a server that is none of Sordino's",
                "return Message(NOT_OURS, reply_to=message)",
                "return call_next(message, context)",
            ),
            ("an app's update is the whole model", "return flatten(found) - sent", "return flatten(found)"),
            (
                "a reply has the head that an app wrote",
                "reply.content = wrap(site.answer(content))",
                "reply = Message(wrap(site.answer(content)), reply_to=message)",
            ),
            (
                "a site answers messages that evaluate",
                'if message.metadata.message_type.partition(".")[0] == TRAIN else None',
                "",
            ),
            (
                "a site that does not open tells the server why",
                "except FAILURES as error:  # Flower would send",
                "except ZeroDivisionError as error:  # Flower would send",
            ),
            (
                "an app's run goes on as another",
                "if terms_of(stored).identity != terms_of(experiment).identity:",
                "if False:",
            ),
        ],
    ),
    (
        "deploy/site/app.py",
        "tests/flower/test_mod.py",
        [
            (
                "an app's update leaves without the gate",
                "self.gate.passes(releases, wanted, self._draw_number(question), public), {}, None)",
                "__import__('sordino.privacy.gate', fromlist=['']).Passed({n: v.long() for n, v in wanted.items()}, "
                "0, 0), {}, None)",
            ),
            ("a site without its app answers", "self.context.train is None", "False"),
        ],
    ),
    (
        "privacy/noise.py",
        "tests/privacy/test_noise.py tests/privacy/test_integers.py",
        [
            (
                "masks: from the ground",
                '(key,) = self._secret(b"masks", purpose[:-1], purpose[-1:])',
                '(key,) = _digests(b"masks", KEY_BYTES, (self.seed,), purpose[:-1], purpose[-1:])',
            ),
            (
                "masks: from the ground on real machines",
                "return system_words(MASK_WORDS) >> np.uint64(32)",
                "return np.arange(MASK_WORDS, dtype=np.uint64)",
            ),
            ("one draw for all clients", "purpose, clients, digests)", "purpose, [0] * len(clients), digests)"),
            ("one draw for all seeds", "run = (self.seed, self.identity,", "run = (self.identity,"),
            ("one draw for all runs", "run = (self.seed, self.identity,", "run = (self.seed,"),
            ("one draw for all purposes", "KEY_BYTES, run, purpose, last", "KEY_BYTES, run, (), last"),
            (
                "the purpose's last part is left out",
                "KEY_BYTES, run, purpose, last",
                "KEY_BYTES, run, purpose[:-1], last",
            ),
            ("the ground depends on the experiment", "8, (self.seed,)", "8, (self.seed, self.identity or 0)"),
            ("one ground for all seeds", "8, (self.seed,)", "8, ()"),
            ("one run's draws for all", "_begin_digest(kind, size, run).copy()", "_begin_digest(kind, size, run)"),
            ("noise without an identity", "if self.identity is None:", "if False:"),
            ("secure words that are known", "os.urandom(8 * count)", "bytes(8 * count)"),
            (
                "whole numbers: one draw for all clients",
                'b"integers", purpose, clients, ',
                'b"integers", purpose, [0] * len(clients), ',
            ),
            ("coins from the noise's key", 'b"coins"', 'b"noise"'),
            (
                "one coin for all clients",
                'b"coins", purpose[:-1], purpose[-1:])',
                'b"coins", purpose[:-1], [0])',
            ),
            ("own code: draws without values", "None if self.repeats else covered", "None if True else covered"),
            (
                "own code: draws of stacked sums without values",
                "[None] * len(purposes) if self.repeats",
                "[None] * len(purposes) if True",
            ),
            (
                "own code: whole numbers without values",
                "purpose, clients, covered.digests())",
                "purpose, clients, [b''] * len(clients))",
            ),
            ("own code: digests do not enter keys", "encode(part) + digest", "encode(part) + digest[:0]"),
            ("own code: digests of 16 bits", "encode(part) + digest", "encode(part) + digest[:1]"),
            (
                "own code: one value for all clients",
                "enumerate(_row_digests(self.rows))",
                "enumerate([_row_digests(self.rows)[0]] * len(self.rows))",
            ),
            ("own code: half of a value", "ended.update(row)", "ended.update(row[: len(row) // 2])"),
            ("own code: values without their type", 'f"{whole.dtype} {', 'f"{'),
            ("own code: values without their shape", "{tuple(whole.shape[1:])}", ""),
            (
                "own code: the noise's size does not count",
                "how = [_row_digests(part) for part in self.how]",
                "how = []",
            ),
            (
                "own code: everybody has the first one's noise",
                "part[place if len(part) > 1 else 0]",
                "part[0]",
            ),
            ("own code: what else decides noise does not count", ", encode(self.about)]", "]"),
            ("own code: nobody knows what was drawn", "self._keys.extend(keys)", "pass"),
            ("own code: what was drawn is told twice", "        self._keys.clear()\n", ""),
            ("own code: draws without a nonce", "*([self.nonce.hex()] if self.nonce else [])", ""),
            ("own code: one nonce for all runs", "os.urandom(NONCE_BYTES)", "bytes(NONCE_BYTES)"),
            ("own code: sources repeat unless told", "repeats: bool = False", "repeats: bool = True"),
            ("texts that run into each other", 'b"%d:%s" % (len(text), text)', 'b"%s/" % text'),
            ("numbers that run into each other", 'b"i%d;"', 'b"i%d"'),
            ("keys of 16 bits", "ended.digest())", "ended.digest()[:2].ljust(size, b'0'))"),
            ("keys of 32 bits", "ended.digest())", "ended.digest()[:4].ljust(size, b'0'))"),
            ("generators heed 32 bits", "np.frombuffer(key,", "np.frombuffer(key[:4].ljust(24),"),
            ("generators heed 128 bits", "np.frombuffer(key,", "np.frombuffer(key[:16].ljust(24),"),
            ("tails cut at 5 deviations", "    return radius\n", "    return np.minimum(radius, 5)\n"),
            ("tails cut at 7 deviations", "return math.sqrt(", "return 7.0 - 0 * math.sqrt("),
            ("tails of 32 bits", "+ more + 1)", "+ 2**127)"),
            ("tails of 64 bits", "MORE_BITS = 128", "MORE_BITS = 32"),
            ("one tail for all places", "keys[row], start + place)", "keys[row], 0)"),
            ("one tail for all blocks", "keys[row], start + place)", "keys[row], place)"),
            ("one tail for all rows", "more_bits(keys[row],", "more_bits(keys[0],"),
            ("no small numbers", "np.float32(2**-32)", "np.float32(2**-32.1)"),
            ("half the angles", "math.pi / 2**31", "math.pi / 2**32"),
            (
                "one block for all of a row",
                "row[: stop - start] = words_of_row",
                "row[: stop - start] = stream(keys[0])",
            ),
            ("coins of 16 bits", "math.ceil(rate * 2.0**53) << 11", "math.ceil(rate * 2.0**16) << 48"),
            ("coins that fall too often", "math.ceil(rate * 2.0**53)", "math.ceil(1.05 * rate * 2.0**53)"),
        ],
    ),
    (
        "privacy/integers.py",
        "tests/privacy/test_integers.py tests/privacy/test_mechanism.py",
        [
            ("half the noise", "self.factor, out=part)", "self.factor // 2, out=part)"),
            ("noise of one draw", "part += drawn[len(part) :]", "part += 0"),
            ("one draw used twice", "part += drawn[len(part) :]", "part += drawn[: len(part)]"),
            ("columns from the thresholds' words", "raw[count:].view", "raw[: (count + 1) // 2].view"),
            ("thresholds by one too high", "raw[:count] < table", "raw[:count] <= table"),
            ("masses rounded down", "-(-weight * unit // whole)", "weight * unit // whole"),
            (
                "a narrower table",
                "ratio = ratio * squared >> PRECISION",
                "ratio = ratio * squared * root >> 2 * PRECISION",
            ),
            ("columns are not checked", "if table_masses(table) != wanted:", "if False:"),
            ("twice the bound", "Fraction(bound) ** 2 *", "4 * Fraction(bound) ** 2 *"),
            ("rounded and not looked at again", "if squares <= limit:", "if True:"),
            ("infinity passes", "if not math.isfinite(length):", "if False:"),
            ("squares of the low bits only", "(_sum(high * high) << 52)", "0"),
            ("signals that rounding eats", "if limit < 16 * entries:", "if False:"),
            ("sums that do not fit", "if largest < 2 ** (bits - 1):", "if largest < 2**bits:"),
            (
                "rounding of sums is free",
                "rounded = multiplier / (1 + multiplier * math",
                "rounded = multiplier / (1 + 0 * math",
            ),
            ("the gap's delta is left out", "left = delta - sum(gap.delta(epsilon) for gap in gaps)", "left = delta"),
            ("the gap's epsilon is left out", "return found + sum(gap.epsilon for gap in gaps)", "return found"),
        ],
    ),
    (
        "privacy/mechanism.py",
        "tests/privacy/test_mechanism.py tests/privacy/test_gate.py tests/privacy/test_gradients.py "
        "tests/privacy/test_noise.py tests/deploy/test_masking.py",
        [
            ("floats: half the noise", "noise.mul_(deviations)", "noise.mul_(deviations / 2)"),
            ("floats: half the noise at places", "drawn.mul_(deviations", "drawn.mul_(0.5 * deviations"),
            ("floats: sums without noise", "alpha=deviation)", "alpha=0.0)"),
            ("floats: separate tensors without noise", "noise.mul_(deviation.float())", "noise.mul_(0.0)"),
            (
                "integers: half the noise on separate tensors",
                "(in_deviations * deviation)",
                "((in_deviations + total.cpu().double() / deviation) / 2 * deviation)",
            ),
            ("integers: no noise", "whole[place, entries] += grid.noise(words, len(entries))", "pass"),
            (
                "integers: one draw for all",
                "source.words(purpose, clients, ",
                "source.words(purpose, [0] * len(clients), ",
            ),
            ("own code: noise of any size", "[cover.deviations, cover.bounds, *leaving]", "[cover.bounds, *leaving]"),
            (
                "own code: bounds of any size",
                "[cover.deviations, cover.bounds, *leaving]",
                "[cover.deviations, *leaving]",
            ),
            ("own code: blocks of any size", "{cover.mirrored} {cover.sizes}", "{cover.mirrored}"),
            ("own code: noise wherever clients differ", "[cover.at] if cover.at is not None else []", "[]"),
            (
                "own code: noise at any places",
                "[cover.places.unsqueeze(0)] if cover.places is not None else []",
                "[]",
            ),
            ("own code: noise for any unit", 'f"{cover.unit} {', 'f"{'),
            ("own code: mirrored noise or not", "{cover.mirrored} ", " "),
            (
                "own code: sums in noise of any size",
                "Covered(total.reshape(1, -1), [torch.as_tensor(deviation, dtype=torch.float64).reshape(1, -1)])",
                "Covered(total.reshape(1, -1), [])",
            ),
            (
                "own code: stacked sums in noise of any size",
                "Covered(totals, [torch.tensor(deviations, dtype=torch.float64).unsqueeze(1)])",
                "Covered(totals, [])",
            ),
            (
                "integers: no bound",
                "integers.round_contribution(mine, bound, deviation, grid)",
                "integers.round_sum(mine, deviation, grid)",
            ),
            ("integers: sums without noise", "whole += RECORDS.noise(words, whole.size)", "pass"),
            ("integers: noise of another grid", "return RECORDS if", "return CLIENTS if"),
            (
                "integers: nothing is refused",
                "integers.check_signal(CLIENTS.longest(bound, deviation), len(entries))",
                "pass",
            ),
            (
                "a sum of unequal noise",
                "    if len(cover.deviations) > 1:\n        raise",
                "    if False:\n        raise",
            ),
        ],
    ),
    (
        "deploy/protocol/secure_sum.py",
        "tests/deploy/test_masking.py",
        [
            ("no mask of one's own", 'own.to_bytes(KEY_BYTES, "big"), +1)', "bytes(KEY_BYTES), +1)"),
            ("survivors of any number", "if len(survivors) < self.minimum:", "if False:"),
            ("survivors named twice", "if len(set(survivors)) < len(survivors):", "if False:"),
            ("sums without this site", "if self.identity not in survivors:", "if False:"),
            ("one share too few opens", "split(own, self.cohort.minimum,", "split(own, self.cohort.minimum - 1,"),
            (
                "seeds of survivors are told",
                "for one in self.cohort.dropped(survivors)},\n",
                "for one in {p.identity for p in self.cohort.parties} - {self.identity}},\n",
            ),
            ("keys serve several asks", "(PROTOCOL, self.cohort.question, *purpose)", "(PROTOCOL, *purpose)"),
            ("one key for several shares", "salt = os.urandom(KEY_BYTES)", "salt = bytes(KEY_BYTES)"),
            ("a share for anybody", 'b"share", self.identity, receiver, salt)', 'b"share", salt)'),
            ("cohorts that show single messages", "colluders, active_server) >= 2:", "colluders, active_server) >= 1:"),
            ("another site's key is taken", "!= public_key(private):", "!= public_key(private) and False:"),
            ("somebody stands twice in a cohort", "if len(set(values)) < len(values):", "if False:"),
        ],
    ),
    (
        "deploy/protocol/secret_sharing.py",
        "tests/deploy/test_sharing.py",
        [
            ("one share is the secret", "for _ in range(threshold - 1))", "for _ in range(0))"),
            ("known polynomials", "*(secrets.randbelow(FIELD) for", "*(7 for"),
            ("wrong shares are taken", "!= shares[other]:", "!= shares[other] and False:"),
        ],
    ),
    (
        "deploy/site/work.py",
        "tests/deploy/test_failing_sites.py tests/deploy/test_failures.py tests/deploy/test_attacks.py "
        "tests/deploy/test_fuzz.py",
        [
            (
                "what leaves is not charged",
                "ledger.append(authorize_payment(ledger.entries(), session, cost, context.policy))",
                "authorize_payment(ledger.entries(), session, cost, context.policy)",
            ),
            (
                "a second draw for one ask",
                "ledger.keep_answer(question.id, question.hash,",
                "0 and ledger.keep_answer(question.id, question.hash,",
            ),
            (
                "the same ask with another content",
                'if bytes(kept["hash"]) != question.hash:',
                "if False:",
            ),
            ("old questions are answered", "if last is not None and question.id.order <= last:", "if False:"),
            ("what was lost is drawn again", "question.id.order <= last:", "question.id.order < last:"),
            (
                "the filter is not asked again",
                "ledger.append(authorize_payment(ledger.entries(), session, cost, context.policy))",
                "ledger.append(cost)",
            ),
            (
                "outlet: a failing step is told",
                '    with context.log_errors(f"{where} failed on these records and contributes noise alone"):',
                "    if True:",
            ),
        ],
    ),
    (
        "deploy/site/work.py",
        "tests/deploy/test_failures.py tests/deploy/test_witness.py",
        [
            ("a second list of survivors is answered", 'if kept["survivors"] is not None:', "if False:"),
            ("a restored site opens for others", 'ledger.append([Entry("opened"', 'str([Entry("opened"'),
        ],
    ),
    (
        "deploy/site/ledger.py",
        "tests/deploy/test_witness.py",
        [("two draws have one row", '"draw": secrets.token_hex(16)', '"draw": ""')],
    ),
    (
        "deploy/site/session.py",
        "tests/deploy/test_freshness.py tests/deploy/test_failing_sites.py",
        [
            ("one nonce for all times", "lambda: secrets.token_bytes(32)", "lambda: bytes(32)"),
            ("one witness is enough", "return len(self.others) if named is None else named", "return 1"),
            (
                "outlet: only some errors stay at the site",
                "        except BaseException as error:\n            if signals",
                "        except ValueError as error:\n            if signals",
            ),
            ("outlet: a step stops its site", "if signals and isinstance(error,", "if isinstance(error,"),
            ("owners cannot stop a site", "if signals and isinstance(error, KeyboardInterrupt):", "if False:"),
            ("outlet: errors are not logged", '            self.log(f"{what}:', '            id(f"{what}:'),
        ],
    ),
    (
        "deploy/site/site.py",
        "tests/deploy/test_failing_sites.py",
        [("a step ends its site", "except FAILURES:", "except Exception:")],
    ),
    (
        "errors.py",
        "tests/cli/test_wrong_inputs.py",
        [("own code ends the program", "FAILURES = (Exception, SystemExit, GeneratorExit)", "FAILURES = (Exception,)")],
    ),
    (
        "cli/__init__.py",
        "tests/cli/test_wrong_inputs.py",
        [("own hooks end the program", "except SystemExit as error:", "except ZeroDivisionError as error:")],
    ),
    (
        "deploy/site/site.py",
        "tests/deploy/test_witness.py tests/deploy/test_rules.py",
        [
            ("nobody asks whose the records are", "        witness.check_records()", "        pass"),
            ("witnesses know no records", "context.private, fingerprint_records(file))", "context.private)"),
            ("replies leave before the witness", "if ledger.head() != self._witnessed:", "if False:"),
            ("a change of rules is not in the ledger", "            ledger.append(changed)", "            pass"),
            ("a change of rules is not told", "notices = [RULES_CHANGED] if", "notices = [] if"),
        ],
    ),
    (
        "deploy/site/witness.py",
        "tests/deploy/test_witness.py",
        [
            ("a folder behind its witness opens", "elif ledger.link(seen.position) != seen.link:", "elif False:"),
            ("a lost witness is not told", "if ledger.is_witnessed():", "if False:"),
            ("a ledger beside another's records", 'if _load(path)["records"] == self.records:', "if False:"),
            (
                "any witness is believed",
                "if not keys.is_signed(keys.public_identity(self.private), signature, *head.signed_parts()):",
                "if False:",
            ),
            ("the witness goes back", "            self.check(ledger)\n", ""),
            ("a witness inside of the folder", "if where.is_relative_to(folder.resolve()):", "if False:"),
            ("an accepted backup has a budget", "if isinstance(doubt, OlderThanWitnessError):", "if False:"),
            ("nobody confirms what is accepted", "if policy.roster is None:", "if False:"),
            ("open runs are forgiven", 'run["state"] == "open" and run["run"] in unlimited', "False"),
        ],
    ),
    (
        "flower/trial.py",
        "tests/flower/test_commands.py",
        [("nobody hears why a site ended", "tell(_explain_end(folder, code))", "pass")],
    ),
    (
        "deploy/site/status.py",
        "tests/deploy/test_witness.py",
        [
            (
                "a restored folder states an epsilon",
                "one.by_rules(rules) if unwitnessed is None else math.inf",
                "one.by_rules(rules)",
            ),
            ("status: the witness is not looked at", "        witness.check(ledger)", "        pass"),
            ("status: rows and head of different instants", "ledger, ledger.snapshot():", "ledger:"),
        ],
    ),
    (
        "deploy/site/freshness.py",
        "tests/deploy/test_freshness.py tests/deploy/test_witness.py",
        [
            ("restored sites go on", "if ledger.link(position) != note.head.link:", "if False:"),
            ("nobody needs to confirm", "if len(counted) < context.quorum:", "if False:"),
            ("notes on an earlier run count", "if position >= needed and not forgot:", "if not forgot:"),
            ("who has forgotten is a witness", "if position >= needed and not forgot:", "if position >= needed:"),
            (
                "notes are not checked",
                "return found if found.is_signed(sender, context.nonce, context.identity) else None",
                "return found",
            ),
            (
                "the owner's signature is not checked",
                'return keys.is_signed(sender, self.signature, "note", *about) and keys.is_signed(',
                'return keys.is_signed(sender, self.signature, "note", *about) or keys.is_signed(',
            ),
            ("a restart needs no notes", "if not (confirmed and context.is_fresh):", "if not confirmed:"),
            ("one run is confirmed for all", "if not (confirmed and context.is_fresh):", "if not context.is_fresh:"),
            ("a longer branch hides the last", "if held is None or statement.includes(held[0]):", "if True:"),
            ("statements are not checked", "if statement.is_signed(owner):", "if True:"),
            (
                "links are not signed",
                "_statement_parts(self.nonce, self.since, self.links)\n        )",
                "_statement_parts(self.nonce, 0, b'')\n        ) or True",
            ),
            ("a run begins twice alike", '"random": secrets.token_hex(16)}', '"random": ""}'),
            ("what is reserved is not confirmed", "for row in (start, *reserved) if", "for row in (start,) if"),
            (
                "runs go on that an owner accepted",
                'if any(entry.kind == "accepted" for entry in entries[begun[0] :]):',
                "if False:",
            ),
        ],
    ),
    (
        "deploy/server/presence.py",
        "tests/deploy/test_failures.py tests/deploy/test_freshness.py",
        [
            (
                "the server forgets between runs",
                "return None if head is None else head.to_list()",
                "return None",
            ),
            (
                "the server takes an older ledger",
                "if before is not None and head.position < before.position:",
                "if False:",
            ),
        ],
    ),
    (
        "deploy/site/spending.py",
        "tests/deploy/test_spending.py tests/deploy/test_failures.py tests/deploy/test_attacks.py",
        [
            ("the filter is skipped", "if not spending.fits(rules):", "if False:"),
            ("two plans in one run", "one.sampled != row.sampled for one in paid):", "False for one in paid):"),
            ("records' turns are not counted", "if row.pool and session.turns_left(row, paid) < 1:", "if False:"),
            (
                "the records of a second run are not reserved",
                "if of_records and session.run not in known else []",
                "if of_records and not known else []",
            ),
        ],
    ),
    (
        "deploy/site/freshness.py",
        "tests/deploy/test_failures.py tests/deploy/test_attacks.py",
        [
            (
                "forged heads are believed",
                "if place and not keys.is_signed(own, mine, *seen.signed_parts()):",
                "if False:",
            ),
            ("restored ledgers go on", "if place and ledger.link(place) != known:", "if False:"),
            (
                "the server's echo is not heard",
                "if echo.position and ledger.link(echo.position)",
                "if False and ledger.link(0)",
            ),
            ("spoiled ledgers go on", 'if any(entry.kind == "spoiled" for entry in ledger.entries()):', "if False:"),
        ],
    ),
    (
        "federation/evaluation.py",
        "tests/federation/test_evaluation.py tests/deploy/test_histogram.py tests/deploy/test_accuracies.py",
        [
            ("what is asked at the end is free", "run_state.charge(run_state.ledger.charge(sent,", "id((sent,"),
            ("half the noise on a histogram", "share * turns / (1 - share - others)", "4 * share * turns"),
            ("rounds pay for the histogram", "share * turns / (1 - share - others)", "share * turns"),
            ("twice the share of records", "CellCounts(1.0, share, cells)", "CellCounts(1.0, 2 * share, cells)"),
            ("noise is told too small", "release.weight(gate.allowance, who) / len", "0.5 / len"),
            ("withheld: nobody says so", "        if not lost:\n", "        if True:\n"),
            (
                "withheld: means over clients count as sums over records",
                "Released(counts, deviations[HISTOGRAM], of_records)",
                "Released(counts, deviations[HISTOGRAM], True)",
            ),
        ],
    ),
    (
        "federation/client.py",
        "tests/federation/test_evaluation.py tests/deploy/test_histogram.py",
        [
            ("test records leave unsealed", 'Sealed(rows, "test", "cells"', 'Sealed(rows, "training", "cells"'),
            (
                "a person's test records are summed",
                "return sums / whose.bincount(minlength=len(sums)).unsqueeze(1)",
                "return sums",
            ),
            ("a client's records are not averaged", "rows.mean(dim=0, keepdim=True)", "rows.sum(dim=0, keepdim=True)"),
            (
                "all clients draw the same noise",
                "public = Public(question.message, [client], {}",
                "public = Public(question.message, [0], {}",
            ),
            (
                "all questions draw the same noise",
                "{HISTOGRAM: value}, question.number, public",
                "{HISTOGRAM: value}, 0, public",
            ),
        ],
    ),
    (
        "experiment/budgeting.py",
        "tests/federation/test_evaluation.py tests/deploy/test_terms.py",
        [("what is kept is spent twice", "/ math.sqrt(1 - self.kept)", "/ 1.0")],
    ),
    (
        "privacy/release/of_sums.py",
        "tests/federation/test_evaluation.py",
        [
            ("test records pay apart", 'public), pool="training")', 'public), pool="validation")'),
            ("test records are training records", 'pool: ClassVar[Pool] = "test"', 'pool: ClassVar[Pool] = "training"'),
            ("a histogram is divided", "return float(len(public.clients))", "return 1.0"),
        ],
    ),
    (
        "terms.py",
        "tests/federation/test_evaluation.py tests/learning/test_class_weights.py tests/test_derive.py",
        [
            (
                "raw counts weigh records",
                'method.class_weight == "balanced" and method.unit.record_level and not method.counts_labels',
                "False",
            ),
            (
                "sites' accuracies take noise in a simulation",
                "facts.share_of_accuracies(experiment)\n",
                "experiment.metrics_share\n",
            ),
            ("a histogram of records is not planned", "steps = {**steps, **evaluation}", "pass"),
            ("a histogram without a budget", "if not is_private(steps):\n        raise", "if False:\n        raise"),
        ],
    ),
    (
        "tasks/classification.py",
        "tests/learning/test_class_weights.py",
        [
            (
                "stacked clients are not weighed",
                "found *= outputs.new_tensor(self.weights)",
                "outputs.new_tensor(self.weights)",
            ),
            (
                "padding counts as a class",
                "(targets.unsqueeze(1) == classes) * weight.unsqueeze(1)",
                "(targets.unsqueeze(1) == classes) * 1.0",
            ),
        ],
    ),
    (
        "deploy/accuracies.py",
        "tests/deploy/test_accuracies.py",
        [
            ("less noise on shared accuracies", "(len(NAMES) * (1 - share - others))", "(1 - share - others)"),
            ("accuracies take what is kept for others", "(1 - share - others))", "(1 - share))"),
        ],
    ),
    (
        "deploy/site/session.py",
        "tests/deploy/test_attacks.py",
        [
            ("misfits are told without end", "len(told) >= policy.rules.max_misfits:", "False:"),
            ("misfits are not written down", "ledger.append([Entry(MISMATCH,", "id([Entry(MISMATCH,"),
        ],
    ),
    (
        "deploy/database.py",
        "tests/deploy/test_attacks.py",
        [("altered rows are read", "if row.pop(DIGEST) != table.digest(row):", "if row.pop(DIGEST) is None:")],
    ),
    (
        "deploy/site/ledger.py",
        "tests/deploy/test_migration.py",
        [
            ("a ledger of a newer version is opened", "if version > VERSION:", "if version > VERSION + 9:"),
            (
                "an earlier version opens an upgraded ledger",
                "if self._version < VERSION:",
                "if self._version < 0:",
            ),
        ],
    ),
    (
        "deploy/site/migration.py",
        "tests/deploy/test_migration.py",
        [("a truncated file is completed", "if ledger.is_witnessed():", "if not ledger.head():")],
    ),
    (
        "deploy/server/journal.py",
        "tests/deploy/test_migration.py",
        [
            (
                "the server forgets the heads that journals had",
                "self.set_fact(FORMER_HEADS, known)",
                "self.set_fact(FORMER_HEADS, [])",
            ),
        ],
    ),
    (
        "federation/rounds.py",
        "tests/experiment/test_summary.py",
        [("the worst tenth of a loss is its best", "return mean(known[-number:])", "return mean(known[:number])")],
    ),
    (
        "deploy/site/ledger.py",
        "tests/deploy/test_failures.py",
        [
            (
                "a ledger without its last rows",
                "if _head_bytes(Head(len(self._entries), self._link)) != self.fact(HEAD):",
                "if not self._entries:",
            )
        ],
    ),
    (
        "deploy/site/enrol.py",
        "tests/deploy/test_failures.py tests/deploy/test_attacks.py",
        [
            ("other code's noise", "if terms.identity != identity:", "if False:"),
            ("files that a server names", "if experiment.build_method().files():", "if False:"),
        ],
    ),
    (
        "deploy/site/session.py",
        "tests/deploy/test_session.py tests/deploy/test_terms.py tests/deploy/test_attacks.py "
        "tests/deploy/test_failures.py tests/deploy/test_equality.py",
        [
            ("wider matrices than were reserved for", "self.terms.check_reserved(rows)", "pass"),
            ("cohorts of any size", "if not terms.minimum <= len(parties) <= terms.schedule.cohort:", "if False:"),
            ("strangers in the cohort", "policy.check_members(", "id("),
            (
                "a site counts gradients by their names",
                "names = same_turns(steps, row.step, row.release)",
                "names = {row.release}",
            ),
            ("bounds are not looked at", "policy.check_question(terms, releases, public, self.gate)", "pass"),
            ("noise from the seed", "if terms.seeded:", "if True:"),
            (
                "keys that nobody signed",
                "if not keys.is_signed(party.identity,",
                "if False and not keys.is_signed(party.identity,",
            ),
            ("one draw for all attempts", "attempt(question.number, question.id.attempt)", "question.number"),
            (
                "one site's own threshold in a sum",
                "if terms.is_summed(releases) and any(isinstance(value, Each)",
                "if False and any(isinstance(value, Each)",
            ),
            ("half of what a run may cost is written down", "max(found.values())", "max(found.values()) / 2"),
            (
                "what observers may learn is not written down",
                "if len(set(found.values())) > 1 else {}",
                "if False else {}",
            ),
        ],
    ),
    (
        "deploy/terms.py",
        "tests/deploy/test_session.py tests/deploy/test_terms.py tests/deploy/test_spending.py "
        "tests/methods/test_dp_fedsgd.py",
        [
            (
                "half of what a run may cost is reserved",
                "dict.fromkeys(VIEWS, float(plan.budgets[number]))",
                "dict.fromkeys(VIEWS, float(plan.budgets[number]) / 2)",
            ),
            (
                "half of what sums with shared noise may cost is reserved",
                "integers.total_epsilon([self.calibration.gap_of_sums(view)], spent, delta)",
                "integers.total_epsilon([self.calibration.gap_of_sums(view)], spent, delta) / 2",
            ),
        ],
    ),
    (
        "deploy/site/rules.py",
        "tests/deploy/test_rules.py tests/deploy/test_failures.py tests/deploy/test_attacks.py",
        [
            (
                "too few witnesses",
                "if not least <= witnesses < sites:",
                "if not 1 <= witnesses < sites:",
            ),
            ("colluders are counted as witnesses", "return -(-(sites + colluders) // 2)", "return -(-sites // 2)"),
            ("any method", "if method not in self.rules.methods:", "if False:"),
            ("any network", "if model not in networks:", "if False:"),
            ("a cut file allows eight", "Field(gt=0)", "Field(default=8.0, gt=0)"),
            ("a cut file allows any cohort", "Field(ge=1)", "Field(default=3, ge=1)"),
            ("a digest without its key", "hmac.new(secret,", "hmac.new(bytes(32),"),
            ("a roster is no rule", "exclude=unset), members]", "exclude=unset)]"),
            ("settings that name code", "if strange:", "if False:"),
            ("a trusted server", "if not experiment.active_server and not", "if False and not"),
            ("thresholds beyond the rules", "self._check_bounds(cover.bounds)", "pass"),
            ("thresholds of records beyond the rules", "self._check_bounds(taken.rows)", "pass"),
            ("thresholds below the rules", "(bounds >= low) & (bounds <= high)", "(bounds <= high)"),
            ("thresholds above the rules", "(bounds >= low) & (bounds <= high)", "(bounds >= low)"),
            ("numbers that are not finite", "check_finite(public.message)", "pass"),
            ("what one alone is told", "if isinstance(value, Each):", "if False:"),
            (
                "others' noise counts without a roster",
                'return "server" if self.roster is None else "outsider"',
                'return "outsider"',
            ),
            ("record-level runs where the site is to be protected", "if not rules.unit.record_level:", "if False:"),
            ("the owner's colluders are ignored", "if experiment.colluders < rules.colluders and", "if False and"),
            ("the owner's min_cohort is ignored", "if terms.minimum < rules.min_cohort:", "if False:"),
            ("noise that eats the signal", "            gate.check(releases, public)\n", ""),
        ],
    ),
    (
        "flower/link.py",
        "tests/flower/test_guard.py",
        [
            ("announced bodies of any length", "int(value) > self.max_request_bytes for", "False for"),
            ("endless bodies", "if self._left >= 0:", "if True:"),
            (
                "an endless body is answered twice",
                "if not self._refused:\n            await self._send",
                "if True:\n            await self._send",
            ),
        ],
    ),
    (
        "deploy/server/coordinator.py",
        "tests/deploy/test_rounds.py tests/deploy/test_spending.py",
        [
            ("a round tells all that is reserved", "if self.reasons() or", "if True or"),
            (
                "the server reserves half of a site's budget",
                "(float(budgets[client]), self._delta)",
                "(float(budgets[client]) / 2, self._delta)",
            ),
            (
                "a promise from a known seed",
                "whole = whole.known(allowance.known) if allowance.known else whole",
                "pass",
            ),
            ("a site pays its budget in each turn", "if not paid[client]]", "if True]"),
        ],
    ),
    (
        "deploy/site/spending.py",
        "tests/deploy/test_spending.py",
        [
            (
                "records pay for the site once",
                "self._site_epsilon(2 * known, left, known)",
                "self._site_epsilon(known, left, known)",
            ),
            ("deltas are not added up", "left = delta - sum(one for _, one in self.reserved.values())", "left = delta"),
            ("the last run alone", "self.squares += float(", "self.squares = float("),
            ("record-level runs cost the site nothing", "math.inf if self.reserved else", ""),
            ("gaps are free", "for shares, many in self.entries.items()]", "for shares, many in ()]"),
            ("whole numbers of the last release alone", "self.entries.get(row.shares, 0) + row.entries", "row.entries"),
            (
                "what is accepted is there to spend",
                'found.doubtful = entry.kind == "accepted"',
                "found.doubtful = False",
            ),
            ("a doubtful ledger pays", "return not (self.spoiled or self.doubtful) and", "return not self.spoiled and"),
        ],
    ),
    (
        "deploy/terms.py",
        "tests/test_derive.py tests/deploy/test_terms.py tests/deploy/test_agreement.py tests/deploy/test_failures.py "
        "tests/experiment/test_identity.py",
        [
            ("U_min instead of h", "shares = secure_sum.honest_shares(*cohort)", "shares = minimum"),
            ("statistics of targets are not planned", "cells, learner.task.counted)", "cells)"),
            ("a single message may show", "secure_sum.check_cohort(*cohort)", "pass"),
            ("whole numbers are free", 'whole=experiment.noise != "integers"', "whole=False"),
            (
                "what a schema read is not told",
                "() if experiment.table is None else experiment.table.disclosed()",
                "()",
            ),
            ("spare turns are free", "turns=schedule.turns + self.spare_turns", "turns=schedule.turns"),
            ("shared accuracies are free", "        return experiment.metrics_share\n", "        return 0.0\n"),
            ("keys that travel do not decide", "include=PLAIN - unused)", "include=PLAIN - unused - {'seed'})"),
            (
                "a site's noise is for the declared records",
                "sizes, budgets, needs = np.array([records])",
                "sizes, budgets, needs = np.array([self.experiment.records_each])",
            ),
        ],
    ),
    (
        "terms.py",
        "tests/test_derive.py tests/deploy/test_agreement.py tests/deploy/test_terms.py "
        "tests/experiment/test_identity.py tests/privacy/test_plan.py",
        [
            (
                "own code: weights do not decide",
                '{"made": describe_settings(method)} | network.weights',
                '{"made": describe_settings(method)}',
            ),
            ("choices do not decide", '{"made": describe_settings(method)} | network.weights', "network.weights"),
            ("what is predicted does not decide", "    decided |= _meaning(network.task, costs.evaluation)\n", ""),
            ("who is looked for does not decide", "and not evaluation else", "else"),
            ("public records do not decide", "experiment.decisive() | read | public", "experiment.decisive() | read"),
            (
                "a known seed is no reason",
                'known = SEED_IS_KNOWN if experiment.noise == "integers" else ""',
                'known = ""',
            ),
            ("what a method discloses", "*not_covered_before(experiment, method)]", "]"),
            ("what was read from records", "[*facts.disclosed, *", "[*"),
            ("caveats and weak deltas are not told", "            *notes,\n", ""),
            ("a network that drowns", "*costs.notes, *drowned]", "*costs.notes]"),
            ("personal layers that there are not", "    check_head(method, network.learner.layout)\n", ""),
            ("a network that mixes records", "network.learner.keeper(network.shape)", "pass"),
            (
                "noise for sizes that nobody declared",
                "if has_published_noise(method) and experiment.noise_multiplier is None:",
                "if False:",
            ),
            ("what sites refuse to send", "facts.check_releases(experiment, steps, states)", "pass"),
            ("declarations are not looked at", "check_steps(steps, method.unit, states)", "pass"),
            ("a vacuous delta", "experiment.allow_vacuous_delta or published)", "True)"),
        ],
    ),
    (
        "deploy/declarations.py",
        "tests/deploy/test_terms.py tests/deploy/test_failures.py",
        [("bare releases", "if not release.private:", "if False:")],
    ),
    (
        "deploy/protocol/wire.py",
        "tests/deploy/test_wire.py",
        [
            ("messages of any size", "if len(content) > max_bytes:", "if False:"),
            ("booleans that are none", "bool((content > 1).any())", "False"),
            ("bodies with more than is named", "if body or not", "if not"),
            ("keys that come twice", "if len(found) < len(pairs):", "if False:"),
        ],
    ),
    (
        "learning/pages.py",
        "tests/privacy/test_clipping.py",
        [
            ("rounding of the sum is left out", ", self.inputs) * apart", ", self.inputs) * 0"),
            ("rounding is taken for a tenth", ".eps / 2)", ".eps / 20)"),
            ("activations in float32", "(part.double() for part in", "(part for part in"),
            ("norms in float32", "dim=1, dtype=torch.float64)", "dim=1).double()"),
            ("the bias is left out", "products + 1 if", "products if"),
            ("a bias's norm for its weight", "[slopes * _limit_to_proof(", "[slopes + 0 * _limit_to_proof("),
            (
                "positions of a bias are not added up",
                "torch.ones_like(seen))",
                "torch.eye(seen.shape[1]).to(seen).expand_as(seen))",
            ),
            ("a weight's factor for its bias", "self._weighed(each[1])", "slope"),
        ],
    ),
    (
        "learning/recordwise.py",
        "tests/learning/test_singles.py",
        [
            ("apart: reshaped as one likes", "is not None and shape[:1] == (n,) for", "is not None for"),
            ("apart: a row for each record meets all rows", "self._rank(value) != self._rank(both[0])", "False"),
            ("apart: hooks are overlooked", 'return any(hooks) or "forward" in vars(layer)', "return False"),
            ("apart: records are taken for channels", "return rank == 4", "return True"),
            ("apart: buffers that others change", "value.detach().clone())", "value)"),
        ],
    ),
    (
        "learning/per_record.py",
        "tests/learning/test_singles.py tests/test_adapters.py",
        [
            ("apart: any frozen layer is left out", "if known and frozen:", "if frozen:"),
            ("apart: frozen layers have gradients", "if known and frozen:", "if False:"),
            (
                "apart: networks run as they are written",
                "return self._networks[self.learner.module.training]",
                "return self.learner.written",
            ),
            (
                "apart: nothing is proven",
                "prove_recordwise(self.learner.written.train(mode), shape, dtype, device)",
                "self.learner.written",
            ),
            ("apart: answers are not compared", "if not _alike(answers, said) or", "if"),
            (
                "apart: gradients are not compared",
                "or not (random or _alike(together,",
                "or not (True or _alike(together,",
            ),
        ],
    ),
    (
        "learning/singles.py",
        "tests/learning/test_singles.py",
        [
            ("apart: rounding is forgotten", "rounding(self.most + 8, self.gradients)", "0"),
            ("apart: norms in float32", "dim=1, dtype=torch.float64)", "dim=1).double()"),
            ("apart: NaN spoils the sum", "torch.where(weight.unsqueeze(1) != 0, part, 0.0)", "part"),
            (
                "apart: one dropout for all",
                'in_dims=(None, 0, 0), randomness="different"',
                'in_dims=(None, 0, 0), randomness="same"',
            ),
            ("apart: constants that others change", "constant.detach().clone())", "constant.detach())"),
            (
                "apart: only some of a batch count",
                "yield FormedBook(layout, gradients, len(batch.y))",
                "yield FormedBook(layout, gradients, len(y))",
            ),
        ],
    ),
    (
        "learning/network.py",
        "tests/learning/test_singles.py",
        [
            (
                "apart: values of one pass stay in a layer at two places",
                "(x,), tie_weights=False)",
                "(x,), tie_weights=True)",
            )
        ],
    ),
    (
        "learning/stacked.py",
        "tests/learning/test_singles.py",
        [
            (
                "chain: layers share parameters",
                "            return None  # layers share parameters\n",
                "            pass\n",
            )
        ],
    ),
    (
        "deploy/site/data.py",
        "tests/features/test_runs.py",
        [("features: a site's own records are public", "[*counted, *count_shared(terms.extractor, x)]", "[*counted]")],
    ),
    (
        "data/selection.py",
        "tests/data/test_public.py",
        [
            (
                "public: records set aside are not told",
                "disclosed=(*dataset.disclosed, told)), ~public",
                "disclosed=dataset.disclosed), ~public",
            )
        ],
    ),
    (
        "models/checks.py",
        "tests/test_models.py",
        [
            (
                "apart: large batches in training are not looked at",
                "many) > 0 for training in (False, True)",
                "many) > 0 for training in (False,)",
            ),
            (
                "memory: arrays are not looked into",
                "found = value.dtype.str, value.shape, value.tobytes()",
                "found = None",
            ),
            ("memory: hooks are not looked into", 'or key.endswith("_hooks"):', "or False:"),
            ("memory: functions are not looked into", "for one in _carried(value)]", "for one in ()]"),
            ("memory: bytearrays are not looked into", "found = bytes(value)", "found = None"),
            ("memory: arrays of objects are not looked into", "for one in value.flat]", "for one in ()]"),
            (
                "memory: objects are not looked into",
                "for name, one in attributes(value).items()}",
                "for name, one in ()}",
            ),
            (
                "memory: slots are not looked into",
                "isinstance(one, MemberDescriptorType) and hasattr(value, name)]",
                "False]",
            ),
        ],
    ),
    (
        "privacy/clipping.py",
        "tests/privacy/test_compiled.py",
        [
            ("apart: compiled results are not compared", "if not agree:", "if False:"),
            (
                "apart: one size of compiled batches is compared",
                "for example in examples)",
                "for example in examples[:1])",
            ),
        ],
    ),
    (
        "privacy/clipping.py",
        "tests/privacy/test_clipping.py",
        [
            ("no clipping", ".clamp(max=1)", ".clamp(min=1, max=1)"),
            ("clipping too little by 1e-4", "(1 - 2**-23)", "(1 + 1e-4)"),
            ("the largest threshold for all layers", "clip.double() *", "clip.double().max() *"),
            ("records without a length count", "counts = factors >= MIN_FACTOR", "counts = ~(factors < MIN_FACTOR)"),
            (
                "the finite parts of a record count alone",
                "counts &= torch.isfinite(known).all(dim=-1, keepdim=True)",
                "counts &= torch.isfinite(known)",
            ),
        ],
    ),
    (
        "privacy/budget/shared_noise.py",
        "tests/privacy/test_gate.py tests/privacy/test_ledger.py tests/privacy/test_sums.py",
        [
            ("half the noise, charged alike", "self.multiplier / math", "0.5 * self.multiplier / math"),
            ("noise shared out once more", "self.minimum_cohort - self.colluders if", "self.minimum_cohort**2 if"),
            ("shares are ignored", "math.sqrt(share)", "1.0"),
            (
                "the server's word on who answered",
                "return (asked, self.colluders) if self.shares is None",
                "return (asked, 0) if True",
            ),
            ("shared noise: all of it counts against everybody", "honest_shares(view, *self.met(asked))", "asked"),
            (
                "shared noise: a message has it all against outsiders",
                '== "server":\n            return 1',
                '== "":\n            return 1',
            ),
            ("shared noise: never all of it", 'if self.protect_from == "server":', "if False:"),
            ("shared noise: nobody colludes", "self.minimum_cohort - self.colluders if", "self.minimum_cohort if"),
            (
                "shared noise: shares are not counted",
                "if self.shares is None else self.shares\n\n",
                "if True else 1\n\n",
            ),
        ],
    ),
    (
        "privacy/release/base.py",
        "tests/privacy/test_gate.py",
        [
            ("no clipping", "threshold / norms * (1 - 2**-22)", "torch.ones_like(norms)"),
            ("no clipping of short rows' neighbours", "> threshold).any():", "> threshold).all():"),
            ("normalised: nothing is scaled up", ".clamp(min=1.0)\n", ".clamp(min=1.0, max=1.0)\n"),
            ("normalised: zeros are divided by", "torch.where(norms > SHORTEST, far, 1.0)", "thresholds / norms"),
            (
                "normalised: all parts by the first one's factor",
                "if len(sizes) > 1 else factors",
                "if False else factors[:, :1]",
            ),
            ("clipping to twice the threshold", "threshold / norms *", "2 * threshold / norms *"),
            ("clipping that rounds above", "(1 - 2**-22)", "(1 + 2**-20)"),
            ("numbers are not held", ".clamp(-half, half)", ".clamp(-1e9, 1e9)"),
            ("numbers are not centred", "rows.double() - (low + high) / 2", "rows.double()"),
            ("numbers are centred in float32", "rows.double() -", "rows -"),
            ("any range will do", "MIN_BOUND <= high - low <= MAX_BOUND", "True"),
            ("any threshold will do", "MIN_BOUND <= threshold <= MAX_BOUND", "threshold > 0"),
            ("what is not finite is not looked for", "if math.isfinite(float(rows.sum())):", "if True:"),
            ("one noise for all releases of a width", "once(width, (allowance, release)", "once(width, (allowance,)"),
            ("one noise for all widths", "once(width, (allowance, release)", 'once("any", (allowance, release)'),
        ],
    ),
    (
        "privacy/release/of_clients.py",
        "tests/privacy/test_gate.py tests/privacy/test_ledger.py tests/privacy/test_ledger.py",
        [
            (
                "vectors for several models of any width",
                "return self.times * sum(public.layers) if",
                "return sum(public.layers) if",
            ),
            (
                "NaN passes",
                "finite = torch.isfinite(norms).all(dim=1)",
                "finite = torch.ones(len(norms), dtype=torch.bool)",
            ),
            (
                "noise for the largest threshold's layer only",
                "return by_part.repeat_interleave",
                "by_part = by_part * (by_part == by_part.max())\n        return by_part.repeat_interleave",
            ),
            ("layers' noise is halved", "return by_part.repeat_interleave", "return (by_part / 2).repeat_interleave"),
            (
                "every owner pays like the first",
                "(squares / met).sum(axis=1)",
                "(squares / met).sum(axis=1)[:1]",
            ),
            ("rare coordinates carry all noise", "public.common(self.at) or view", "True or view"),
            ("several numbers are charged as one", "math.sqrt(self.entries) * (self.high", "1.0 * (self.high"),
            (
                "parts of any size",
                "or int(sizes.sum()) != self.width(public):",
                "and int(sizes.sum()) != self.width(public):",
            ),
            ("nothing is left out", "rows * self._mask(public).to(rows)", "rows"),
            (
                "normalised: scaled up and not clipped",
                "return Bounded(shorten_parts(kept, norms, thresholds, sizes), rejected)",
                "return Bounded(kept if self.normalised else shorten_parts(kept, norms, thresholds, sizes), rejected)",
            ),
            (
                "normalised: clipped by lengths from before",
                "norms = part_lengths(kept, sizes)  # of the rounded",
                "pass  # of the rounded",
            ),
            ("normalised: as long as it was", "if self.normalised:\n", "if False:\n"),
            ("no threshold is looked at", "check_thresholds(thresholds, self.describe())", "pass"),
            ("no range is looked at", "check_range(self, self.low, self.high)", "pass"),
            (
                "colluders are ignored where masks differ",
                "variances, view, public, colluders)",
                "variances, view, public, 0)",
            ),
            (
                "nobody is known to collude where masks differ",
                'known = max(colluders, 1 if view == "peer" else 0)',
                'known = 1 if view == "peer" else 0',
            ),
            (
                "colluders are ignored in numbers",
                "[unknown_variance(variance, view, cohort, colluders)[0, 0]",
                "[unknown_variance(variance, view, cohort, 0)[0, 0]",
            ),
        ],
    ),
    (
        "privacy/release/base.py",
        "tests/privacy/test_gate.py tests/privacy/test_sealed.py tests/privacy/test_ledger.py",
        [
            ("messages of any width", "if wanted is not None and rows.shape[1] != wanted:", "if False:"),
            ("sealed values leave under any release", "if not isinstance(value, Tensor):", "if False:"),
            ("bare NaN passes", "torch.where(finite.unsqueeze(1), rows, torch.zeros_like(rows)), int", "rows, int"),
            ("a bare release is free", "np.zeros((1, len(VIEWS))), reason", "np.ones((1, len(VIEWS))) * 1e9, reason"),
        ],
    ),
    (
        "privacy/release/of_records.py",
        "tests/privacy/test_sealed.py tests/privacy/test_gradients.py tests/privacy/test_ledger.py",
        [
            ("means of records that nobody set aside", "if not 0 < self.held_out < 1:", "if False:"),
            (
                "separate tensors cost what one costs",
                "parts = self.thresholds(public).rows.shape[1]",
                "parts = 1",
            ),
            (
                "separate tensors cost what a plan says",
                "def known_beforehand(self) -> bool:\n        return not self.separate",
                "def known_beforehand(self) -> bool:\n        return True",
            ),
            ("separate tensors are stacked", "return not self.separate", "return True"),
            ("a matrix without noise", "return Cover(multipliers, torch", "return Cover(0 * multipliers, torch"),
            (
                "a mean without noise",
                "torch.as_tensor(plan.mean_multipliers[who])",
                "0 * torch.as_tensor(plan.mean_multipliers[who])",
            ),
            (
                "means over made-up values",
                "not isinstance(value, Sealed) or value.pool != pool",
                "isinstance(value, Sealed) and value.pool != pool",
            ),
            ("values of another pool", "or value.pool != pool", ""),
            (
                "means are not held",
                "single = hold_to_range(rows, self.low, self.high)",
                "single = hold_to_range(rows, -1e9, 1e9)",
            ),
            (
                "records of a matrix are not shortened",
                "kept = shorten(kept, lengths(kept)",
                "kept = kept if True else shorten(kept, lengths(kept)",
            ),
            (
                "a matrix is charged as if half of the records were in it",
                "matrix_multipliers\n        paid = [(1.0,",
                "matrix_multipliers\n        paid = [(0.5,",
            ),
        ],
    ),
    (
        "privacy/release/of_records.py",
        "tests/privacy/test_ledger.py tests/test_own_methods.py tests/test_no_privacy.py",
        [
            (
                "published masks are free",
                "return ledger.expose_all(clients,",
                "return [] and ledger.expose_all(clients,",
            ),
            (
                "without privacy, what a release needs is forgotten",
                "return getattr(self.of, name)",
                "return super().__getattribute__(name)",
            ),
            (
                "a run without privacy is free",
                "return Charge.infinite('privacy",
                "return Charge.nothing() or Charge.infinite('privacy",
            ),
            (
                "a run without privacy clips",
                "return self.of.unbounded(rows, public)",
                "return self.of.bounded(rows, public)",
            ),
            (
                "without privacy, bare releases lose their reason",
                "if release.private else release",
                "if True else release",
            ),
        ],
    ),
    (
        "privacy/release/declaring.py",
        "tests/test_own_methods.py tests/privacy/test_gradients.py",
        [
            ("releases of any kind", "if not type(release).__module__.startswith(OURS):", "if False:"),
            ("noise for another unit is taken", "if release.unit not in (None, unit):", "if False:"),
            ("shares beyond a round's budget", "if whole > 1 + 1e-9:", "if False:"),
            ("followers of nothing", "if missing:", "if False:"),
            ("two takers of the same gradients", "if len(gradients) > 1:", "if False:"),
        ],
    ),
    (
        "privacy/release/base.py",
        "tests/test_own_methods.py",
        [("single messages of sums are free", "return ledger.expose(row) if self.summed else []", "return []")],
    ),
    (
        "privacy/unit.py",
        "tests/privacy/test_unit.py tests/report/test_neighbours.py",
        [
            ("delta hides records among clients", "return records if self.record_level else clients", "return clients"),
            (
                "rows are not told from persons",
                "[rows_words(figures or {}, observer)] if self is Unit.RECORD else []",
                "[]",
            ),
            ("one observer's figures for all", 'f" for the {observer}" if observer else ""', '""'),
            ("documents do not tell rows from persons", "if unit is Unit.RECORD else found", "if False else found"),
        ],
    ),
    (
        "privacy/sealed.py",
        "tests/privacy/test_sealed.py",
        [
            ("sealed values can be multiplied", "__mul__ = __rmul__", "__nothing__ = __nothing_else__"),
            ("sealed values show themselves", 'f"<sealed {self.kind}', 'f"{self.__value} <sealed {self.kind}'),
        ],
    ),
    (
        "privacy/views.py",
        "tests/privacy/test_ledger.py",
        [
            ("the server is taken for an outsider", 'if view == "server":', 'if view == "nobody":'),
            ("a peer's own noise is forgotten", '1 if view == "peer" else 0', "0"),
            ("the smallest shares are known", "-np.sort(-variances, axis=0)", "np.sort(variances, axis=0)"),
        ],
    ),
    (
        "privacy/gate.py",
        "tests/privacy/test_gate.py tests/privacy/test_gradients.py tests/test_contract.py",
        [
            (
                "masks: all sums over a batch have the same",
                "        self._masked += 1",
                "        self._masked = 1",
            ),
            (
                "masks: all gradients of a question have the same",
                "return self._source.mask_words(*self.purpose, self.taken)",
                "return self._source.mask_words(*self.purpose, 0)",
            ),
            ("one draw for all questions", "(question, name), public.clients", "(0, name), public.clients"),
            ("one draw for all releases", "(question, name), public.clients", '(question, ""), public.clients'),
            ("undeclared values leave", "if undeclared:", "if False:"),
            (
                "records: half the noise",
                "return self.multiplier * self.whole",
                "return 0.5 * self.multiplier * self.whole",
            ),
            (
                "records: half the noise on separate tensors",
                "return self.multiplier * self.clip.repeat_interleave(self.sizes)",
                "return 0.5 * self.multiplier * self.clip.repeat_interleave(self.sizes)",
            ),
            (
                "records: the noise of the smallest threshold on separate tensors",
                "return self.multiplier * self.clip.repeat_interleave(self.sizes)",
                "return self.multiplier * self.clip.min().expand(int(self.sizes.sum()))",
            ),
            (
                "records: stacked clients' sums are not noised",
                "if not any(deviations):",
                "if True:",
            ),
            (
                "records: one stacked client's noise for all",
                "purposes.append(purpose)",
                "purposes.append(purpose if not purposes else purposes[0])",
            ),
            (
                "records: stacked clients have the first one's threshold",
                "torch.stack([exit.limit for exit in exits])",
                "torch.stack([exits[0].limit for exit in exits])",
            ),
            (
                "records: noise for the largest threshold only",
                "self.whole = float(torch.linalg.vector_norm(self.clip))",
                "self.whole = float(self.clip.max())",
            ),
            ("records: one draw for all steps", "purpose = (*self.purpose, self.taken)", "purpose = self.purpose"),
            (
                "records: one draw for all clients",
                "purpose = (*self.purpose, self.taken)",
                "purpose = (self.purpose[0], self.taken)",
            ),
            (
                "records: one draw for all rounds",
                "purpose = (*self.purpose, self.taken)",
                "purpose = (self.purpose[1], self.taken)",
            ),
            ("records: noise of the first round for all", '"gradient", *purpose', '"gradient", 0, *purpose[1:]'),
            ("records: the same coins for all rounds", "self.sampling, *purpose)", "self.sampling, 0, *purpose[1:])"),
            (
                "records: the same coins for all clients",
                "self.sampling, *purpose)",
                "self.sampling, purpose[0], 0, purpose[2])",
            ),
            ("records: batches are not sampled", "coins(records, self.sampling,", "coins(records, 1.0,"),
            ("records: steps are not counted", "if self.taken >= self.steps:", "if False:"),
            ("records: gradients leave bare", "SampledGradients if drawn[1] > 0", "BareGradients if drawn[1] > 0"),
            ("records: nothing is scaled down", "self.limit = self.clip", "self.limit = self.clip * 1e9"),
        ],
    ),
    (
        "privacy/gradients.py",
        "tests/federation/test_failing_steps.py tests/deploy/test_failing_sites.py tests/privacy/test_gradients.py "
        "tests/test_contract.py",
        [
            ("records: NaN spoils the sum", "book.blank(~torch.isfinite(norms).all(dim=1))", "pass"),
            (
                "apart: validation records are judged as a batch",
                "self.__keeper.logits(flat, x)",
                "self.__keeper.learner.module(x)",
            ),
            (
                "records: validation records are trained on",
                "for chosen in (validation, ~validation)",
                "for chosen in (validation, torch.ones_like(validation))",
            ),
            (
                "records: metrics on training records",
                "for chosen in (validation, ~validation)",
                "for chosen in (~validation, ~validation)",
            ),
            ("records: raw values are handed out", "self.__bare = units if bare else None", "self.__bare = units"),
            (
                "records: training records' gradients are counted",
                "self._part_norms(flat, self.__judge), dim=1)",
                "self._part_norms(flat, self.__units), dim=1)",
            ),
            (
                "records: raw norms are handed out",
                "return self._part_norms(flat, self._bare, parts",
                "return self._part_norms(flat, self.__units, parts",
            ),
            (
                "records: lengths of training records",
                "self._part_norms(flat, self.__judge)",
                "self._part_norms(flat, self.__units)",
            ),
            (
                "records: lengths leave unsealed",
                'return self._seal((lengths <= self.clip).to(flat.dtype), "validation",',
                "return (lambda value, kind: value)((lengths <= self.clip).to(flat.dtype),",
            ),
            (
                "outlet: blank records are trained on",
                "        return torch.zeros_like(flat)\n\n    def batch_within",
                "        return super()._clipped_sum(flat, chosen)\n\n    def batch_within",
            ),
            (
                "outlet: blank records hold the raw ones",
                "super().__init__(units.blank(),",
                "super().__init__(units,",
            ),
            (
                "outlet: blank records are judged",
                "        unknown = torch.full((len(units),), math.nan, device=flat.device)",
                "        unknown = torch.full((len(units),), 0.0, device=flat.device)",
            ),
            (
                "outlet: failures on records are forgotten",
                "            self.failure = error\n            raise",
                "            raise",
            ),
        ],
    ),
    (
        "privacy/accounting/sampled_gaussian.py",
        "tests/privacy/test_dominating_pairs.py tests/privacy/test_gradients.py tests/privacy/test_losses.py "
        "tests/test_contract.py",
        [
            (
                "records: replaced ones cost no more",
                "(ReplacedPair(rate, multiplier), count)",
                "(RecordPair(rate, multiplier), count)",
            ),
            (
                "records: replaced ones cost one direction at half the noise",
                "(ReplacedPair(rate, multiplier), count)",
                "(RecordPair(rate, multiplier / 2), count)",
            ),
            (
                "records: the quick bound of replaced ones forgets those that are added",
                "* removed + added, half",
                "* removed, half",
            ),
            (
                "records: the quick bound of replaced ones at too small an order",
                "for orders in (2 * half, 2 * half - 1)",
                "for orders in (half, half)",
            ),
            ("records: the cheaper of adding and removing", "max(losses.epsilon(delta)", "min(losses.epsilon(delta)"),
            ("records: no noise costs nothing", "return math.inf", "return 0.0"),
            (
                "records: whole batches are paid for once",
                "sum(count / pair.multiplier**2 *",
                "sum(1 / pair.multiplier**2 *",
            ),
            ("records: the quick bound counts one step", "sum([count * _divergences(", "sum([_divergences("),
            (
                "records: an attacker who is told nothing",
                "max((1 + losses.delta()) / 2",
                "max((0 + losses.delta()) / 2",
            ),
            ("several rows cost as much as one", "if contributions > 1 else", "if contributions > 99 else"),
            (
                "several rows share one coin",
                "(rate, multiplier, contributions) if",
                "(rate, multiplier / contributions, 1) if",
            ),
            ("several rows: the quick bound of too few steps", "count * contributions)", "count)"),
            ("several rows lie in the cheapest pools", "return max((person_epsilon(", "return min((person_epsilon("),
        ],
    ),
    (
        "privacy/accounting/calibration.py",
        "tests/privacy/test_gradients.py tests/privacy/test_remembered.py tests/test_contract.py",
        [
            (
                "records: searches end above the budget",
                "return math.log(spent / epsilon)",
                "return math.log(spent / epsilon / 1.1)",
            ),
            (
                "records: noise forgets what else is released",
                "(*others, (rate, FINE**index, steps))",
                "((rate, FINE**index, steps),)",
            ),
            (
                "records: where a search ended before is believed",
                "found = first_within(excess, guess() if known is None else known, low, high)",
                "found = first_within(excess, guess(), low, high) if known is None else known",
            ),
        ],
    ),
    (
        "privacy/accounting/rpdp_fl_calibration.py",
        "tests/privacy/test_published_rates.py",
        [
            (
                "published rates: the noise of another accountant",
                "epsilon, delta, quick_record_epsilon)",
                "epsilon, delta)",
            ),
            (
                "published rates: above the largest",
                "most * min(max(part, MIN_RATE_SHARE), 1.0)",
                "most * max(part, MIN_RATE_SHARE)",
            ),
            (
                "published rates: below zero",
                "most * min(max(part, MIN_RATE_SHARE), 1.0)",
                "most * min(part, 1.0)",
            ),
            (
                "published rates: budgets below the accountant's least are fitted",
                "if epsilon <= quick_record_epsilon(((most * MIN_RATE_SHARE, multiplier, steps),), delta):",
                "if False:",
            ),
            (
                "published rates: the largest budget is fitted",
                "if epsilon * (1 + 1e-9) >= quick_record_epsilon(((most, multiplier, steps),), delta):",
                "if False:",
            ),
            (
                "published rates: a curve of all rates",
                "(((most * part, multiplier, steps),)",
                "(((part, multiplier, steps),)",
            ),
            ("published rates: another curve's start", "float(start * costs[-1])", "0.0"),
            (
                "published rates: other places of the fit",
                "np.concatenate([np.arange(1, 100) / 1000, np.arange(10, 101) / 100])",
                "np.arange(1, 101) / 100",
            ),
        ],
    ),
    (
        "privacy/budget/record_level_plan.py",
        "tests/privacy/test_published_rates.py tests/privacy/test_gradients.py tests/test_contract.py",
        [
            ("records: one step is charged", "int(self.steps[client])", "1"),
            ("records: two matrices at the price of one", "matrices=self.matrices + other.matrices", "matrices=1"),
            ("records: means of one release alone", "means=self.means + other.means", "means=other.means"),
            (
                "records: noise for one round",
                "record_multiplier(budget, delta, rate, int(count) * turns,",
                "record_multiplier(budget, delta, rate, int(count),",
            ),
            (
                "records: rates for one round",
                "record_rate(budget, delta, multiplier, int(count) * turns,",
                "record_rate(budget, delta, multiplier, int(count),",
            ),
            (
                "records: rates forget what else is released",
                "int(count) * turns, rate, others, sites)",
                "int(count) * turns, rate, (), sites)",
            ),
            (
                "records: one rate for all budgets",
                "plan.sampling[who] = record_rate(",
                "_ = record_rate(",
            ),
            ("records: the noise of another kind of client", "kind_of.reshape(-1) == kind", "kind_of.reshape(-1) == 0"),
            ("records: means have half the noise", "math.sqrt(needs.means", "0.5 * math.sqrt(needs.means"),
            ("records: means are paid for once", "needs.means * turns)", "needs.means)"),
            (
                "published rates: half the noise",
                "multiplier = quick_multiplier(*asked)",
                "multiplier = 0.5 * quick_multiplier(*asked)",
            ),
            (
                "published rates: noise for one round",
                "asked = (largest, delta, float(sampling[0]), int(steps[0]) * turns)",
                "asked = (largest, delta, float(sampling[0]), int(steps[0]))",
            ),
            (
                "published rates: for one round",
                "fitted_rate(budget, delta, multiplier, int(count) * turns, rate)",
                "fitted_rate(budget, delta, multiplier, int(count), rate)",
            ),
            (
                "published rates: for the largest budget",
                "fitted_rate(budget, delta, multiplier, int(count) * turns, rate)",
                "fitted_rate(float(budgets.max()), delta, multiplier, int(count) * turns, rate)",
            ),
            (
                "published rates: of whole clients",
                "fitted_rate(budget, delta, multiplier, int(count) * turns, rate)",
                "rate * fitted_rate(budget, delta, multiplier, int(count) * turns)",
            ),
            (
                "published rates: by a search that keeps budgets",
                "plan.sampling[who] = fitted_rate(budget,",
                "plan.sampling[who] = record_rate(budget,",
            ),
            (
                "published rates: a run without privacy has others",
                'trained.tolist() if varied == "noise" else',
                'trained.tolist() if varied != "sampling" else',
            ),
            ("the noise of one matrix for several", "math.sqrt(needs.matrices) / mu_of", "1 / mu_of"),
        ],
    ),
    (
        "privacy/gate.py",
        "tests/privacy/test_shuffled_batches.py",
        [
            ("dealt: a record in several batches", "return self._dealt == batch", "return self._dealt <= batch"),
            ("dealt: all records in each batch", "return self._dealt == batch", "return self._dealt >= 0"),
            (
                "dealt: half of the batches",
                "divmod(step, self.batches_of_pass)",
                "divmod(step // 2, self.batches_of_pass)",
            ),
            ("dealt: every pass alike", "*self.purpose, number)", "*self.purpose, 0)"),
            ("dealt: every client alike", "*self.purpose, number)", "self.purpose[0], 0, number)"),
            (
                "dealt: the noise of one sum for a pass",
                'return self._batch_of_pass(records, purpose[-1]), ("gradient", *purpose)',
                'return self._batch_of_pass(records, purpose[-1]), ("gradient", *self.purpose, 0)',
            ),
            ("dealt: coins all the same", "if self.passes is not None:", "if False:"),
            ("dealt: the gate forgets passes", "clip, self.mechanism, plan.passes)", "clip, self.mechanism)"),
            (
                "dealt: the gate forgets passes of separate parts",
                "self.mechanism, separate, plan.passes)",
                "self.mechanism, separate)",
            ),
            (
                "dealt: half the noise",
                "return self.multiplier * self.whole",
                "return (1.0 if self.passes is None else 0.5) * self.multiplier * self.whole",
            ),
            (
                "dealt: nothing is scaled down",
                "self.limit = self.clip\n",
                "self.limit = self.clip * (1.0 if passes is None else 1e9)\n",
            ),
        ],
    ),
    (
        "privacy/noise.py",
        "tests/privacy/test_shuffled_batches.py",
        [
            (
                "dealt: by coins",
                "torch.randperm(count, generator=",
                "torch.randint(0, max(1, count), (count,), generator=",
            ),
            ("dealt: one deal for all", 'self.generator("batches", *purpose)', 'self.generator("batches")'),
        ],
    ),
    (
        "privacy/budget/record_level_plan.py",
        "tests/privacy/test_shuffled_batches.py",
        [
            (
                "dealt: charged as if by coins",
                "return sampled if self.passes is None else (1.0, sampled[1], self.passes)",
                "return sampled",
            ),
            ("dealt: one pass is charged", "(1.0, sampled[1], self.passes)", "(1.0, sampled[1], 1)"),
            (
                "dealt: twice the noise is charged",
                "(1.0, sampled[1], self.passes)",
                "(1.0, 2 * sampled[1], self.passes)",
            ),
            ("dealt: planned as if by coins", "    if plan.passes is not None:", "    if False:"),
            ("dealt: planned for one pass", "np.full_like(steps, plan.passes)", "np.ones_like(steps)"),
            (
                "dealt: more steps than batches",
                "1 / of_a_pass, epochs * of_a_pass",
                "1 / of_a_pass, 2 * epochs * of_a_pass",
            ),
            (
                "dealt: where epsilon rests on coins",
                'if batches == "shuffled" and (needs.sums or varied != "noise"):',
                "if False:",
            ),
            (
                "dealt: other clients forget passes",
                'not in ("shared", "passes")]',
                'not in ("shared", "passes", "steps")]',
            ),
        ],
    ),
    (
        "methods/bases.py",
        "tests/privacy/test_shuffled_batches.py",
        [("dealt: coins are spoken of", 'if self.batches == "shuffled" else SIZES]', "if False else SIZES]")],
    ),
    (
        "experiment/budgeting.py",
        "tests/privacy/test_shuffled_batches.py",
        [("dealt: the plan does not hear of it", "        batches=method.batches,\n", "")],
    ),
    (
        "parts/record_thresholds.py",
        "tests/methods/test_adadp_cfl.py",
        [
            ("rewards: losses are not weighed", "self.loss_weight * (before[0]", "(before[0]"),
            ("rewards: accuracies are not weighed", "self.accuracy_weight * (now[1]", "(now[1]"),
            ("rewards: noise of losses is not weighed", "hypot(self.loss_weight * loss", "hypot(loss"),
            ("rewards: noise of accuracies is not weighed", "self.accuracy_weight * accuracy)", "accuracy)"),
            ("rewards: what matters is not weighed", "(self.loss_weight + self.accuracy_weight) / 2", "1.0"),
        ],
    ),
    (
        "privacy/gradients.py",
        "tests/privacy/test_noisy_norms.py",
        [
            (
                "norms: without noise",
                "self.__norms.append(torch.linalg.vector_norm(gradient))",
                "self.__norms.append(self._clipped_sum(flat, torch.arange(len(self.__units))).norm())",
            ),
            (
                "norms: of stacked clients without noise",
                "self.__norms.append(torch.linalg.vector_norm(gradients, dim=1))",
                "self.__norms.append(torch.linalg.vector_norm(self._clipped_sums(flat, None), dim=1).to(flat.dtype))",
            ),
            (
                "norms: one stacked client's for all",
                "return torch.stack(self.__norms, dim=1) if self.__norms",
                "return torch.stack(self.__norms, dim=1)[:1].expand(len(self.__sizes), -1) if self.__norms",
            ),
        ],
    ),
    (
        "parts/record_thresholds.py",
        "tests/parts/test_record_thresholds.py tests/privacy/test_noisy_norms.py",
        [
            (
                "dp-agr: paid for once more",
                'return {"norms": Follows("update", entries=TOLD)}',
                'return {"norms": Average(0.0, 1.0)}',
            ),
            (
                "dp-agr: leaves bare",
                'return {"norms": Follows("update", entries=TOLD)}',
                'return {"norms": Bare("norms")}',
            ),
            ("dp-agr: of unknown length", 'Follows("update", entries=TOLD)', 'Follows("update")'),
            ("dp-agr: the window does not move", "norms[who][:, 1:], told]", "norms[who][:, :-1], told]"),
            ("dp-agr: the median", "nanquantile(self.percentile, dim=1)", "nanquantile(0.5, dim=1)"),
            ("dp-agr: of the last round alone", "norms[who].flatten(1).nan", "norms[who][:, -1].nan"),
            ("dp-agr: beyond its range", "found.clamp(self.low, self.high))", "found)"),
            ("dp-agr: what is not finite counts", "torch.where(told > 0, told, torch.nan)", "told"),
            ("dp-agr: noise is added once more", "(norms.square() - noise)", "(norms.square() + noise)"),
            ("dp-agr: the noise of one entry", ".square().expand(data.layout.size).sum()", ".square()"),
            ("dp-agr: nothing is left of short gradients", "clamp(min=least.square())", "clamp(min=0)"),
            ("dp-agr: the shortest alone", "+ 0.5) / TOLD * norms.shape[0]", "+ 0.5) / TOLD"),
        ],
    ),
    (
        "terms.py",
        "tests/methods/test_adadp_cfl.py tests/test_derive.py",
        [
            (
                "rules' later settings decide at their defaults",
                "={describe_settings(getattr(value, one.name))}",
                "={getattr(value, one.name)!r}",
            ),
        ],
    ),
    (
        "experiment/budgeting.py",
        "tests/methods/test_adadp_cfl.py",
        [("published noise of one's own rounds", "schedule.rounds if method.counts_all_rounds else", "")],
    ),
    (
        "auditing/conformance.py",
        "tests/privacy/test_shuffled_batches.py",
        [
            (
                "dealt: charged as coins, unseen",
                "if any(counted[key][0] < 1 for key in dealt",
                "if any(False for key in dealt",
            ),
            ("dealt: twice, unseen", "if deal.purpose in seen:", "if False:"),
            ("dealt: every sum of a pass is a charge", "passage.number % dealt.get(key, 1) == 0", "True"),
            ("dealt: unpaid passes, unseen", "% dealt.get(key, 1) == 0", "< 0"),
        ],
    ),
    (
        "testing/records.py",
        "tests/privacy/test_shuffled_batches.py",
        [
            (
                "dealt: the battery does not look for records in two batches",
                'assert len(set(entered)) == len(entered), "a record enters two batches of one pass"',
                "pass",
            ),
        ],
    ),
    (
        "privacy/gradients.py",
        "tests/privacy/test_stacked_gradients.py",
        [
            (
                "stacks: thresholds of other clients",
                "factors = weighted_factors(norms, limits, of_records",
                "factors = weighted_factors(norms, limits.flip(0), of_records",
            ),
            (
                "stacks: nothing is scaled down",
                "factors = weighted_factors(norms, limits, of_records, self.__normalised)",
                "factors = torch.ones(norms.shape[:2])",
            ),
            (
                "stacks: who was not chosen counts too",
                "counts, order = counts[:, :most], order[:, :most]",
                "counts, order = torch.ones_like(counts[:, :most]), order[:, :most]",
            ),
            (
                "stacks: records that are not finite count",
                "known = torch.isfinite(norms[client]).all(dim=1)\n",
                "known = torch.ones(len(norms[client]), dtype=torch.bool)\n",
            ),
            (
                "stacks: what is not finite leaves",
                "if math.isfinite(float(totals.sum())):",
                "if True:",
            ),
            (
                "stacks: records that were not drawn come back",
                "known if counts is None else known & (counts[client] > 0)",
                "known",
            ),
            ("stacks: one gradient for all clients", 'if not torch.equal(place, self.figures["place"]):', "if False:"),
        ],
    ),
    (
        "learning/stacked.py",
        "tests/privacy/test_clipping.py",
        [
            ("stacks: the bias is forgotten", "(1 if bias else 0)", "0"),
            (
                "stacks: the largest slope is the length",
                "square_().sum(dim=2).sqrt_()",
                "square_().amax(dim=2).sqrt_()",
            ),
            (
                "stacks: rounding is forgotten",
                "* self._growth()",
                "",
            ),
            (
                "stacks: huge records are believed",
                "torch.where(squared <= LARGEST_NORM**2, squared, torch.inf)",
                "squared",
            ),
        ],
    ),
    (
        "privacy/accounting/dominating_pairs.py",
        "tests/privacy/test_dominating_pairs.py tests/privacy/test_losses.py",
        [
            ("pairs: a replaced record is emptied", "(self.rate, -1.0)", "(self.rate, 0.0)"),
            ("pairs: a replaced record's losses are halved", "half + np.sign(half) *", "half + 0.5 * np.sign(half) *"),
            ("pairs: large losses are misplaced", "log_size + math.log(2), large", "log_size + 3, large"),
            ("pairs: several rows' coins are one", "math.comb(count, drawn) * rate**drawn", "rate**drawn"),
            ("pairs: losses of rows are not looked for", "MAX_ITERATIONS = 64", "MAX_ITERATIONS = 1"),
            ("pairs: coins are no help to the observer", "self.means[1] - self.means[0]", "1.0"),
        ],
    ),
    (
        "privacy/accounting/loss_distribution.py",
        "tests/privacy/test_losses.py tests/privacy/test_dominating_pairs.py",
        [
            (
                "losses: unsampled rows count as one",
                "count / pair.multiplier**2 * pair.distance**2 for",
                "count / pair.multiplier**2 for",
            ),
            (
                "losses: an infinite loss of one normal distribution alone",
                "ndtr((mean - x) / deviation) for weight, mean in mixture)",
                "ndtr((mean - x) / deviation) for weight, mean in mixture[:1])",
            ),
            (
                "losses: added records alone",
                "_compose_in_window(removed, counts, grid, windows[0]",
                "_compose_in_window(added, counts, grid, windows[1]",
            ),
            ("losses: tails are forgotten", "infinite = -math.expm1(finite) + TAIL * delta", "infinite = 0 * TAIL"),
            ("losses: what is cut off below is forgotten", "removed[1] += _below(", "removed[1] += 0 * _below("),
            ("losses: what is cut off below counts for less", "added[-2] +=", "added[-1] +="),
            ("losses: bins count for their cheaper end", "np.minimum(share, whole)", "0.0 * whole"),
            ("losses: one step too few", "count * log for log,", "(count - 1) * log for log,"),
            ("losses: epsilon for twice the delta", "allowed = delta - self", "allowed = 2 * delta - self"),
            ("losses: the window is too narrow", "math.ceil(ends[0])", "math.ceil(ends[0] / 3)"),
            (
                "losses: masses of one normal distribution alone",
                "_normal_masses((x - mean) / deviation) for weight, mean in mixture]",
                "_normal_masses((x - mean) / deviation) for weight, mean in mixture[:1]]",
            ),
        ],
    ),
    (
        "privacy/accounting/calibration.py",
        "tests/privacy/test_remembered.py",
        [
            ("remembered: searches are not told apart", "{_version()} {_plain_numbers(search)!r}", "{_version()}"),
            ("remembered: code is not told apart", "{_version()} {_plain", "{_plain"),
        ],
    ),
    (
        "store/spending.py",
        "tests/store/test_deals.py tests/experiment/test_stopping.py tests/store/test_lifetime.py "
        "tests/store/test_lost_journals.py tests/store/test_importing.py "
        "tests/experiment/test_other_machines.py tests/deploy/test_terms.py",
        [
            (
                "whole plan: a stopped run's later attempts are free",
                "plan = _with_attempts(",
                "plan = (lambda plan, _: plan)(",
            ),
            (
                "runs: one under way has spent nothing yet",
                'if row.state == "stopped" and not lost and not ledger.rows',
                "if not lost and not ledger.rows",
            ),
            (
                "runs: one without its files spent nothing",
                'if row.state == "stopped" and not lost and not ledger.rows',
                'if row.state == "stopped" and not ledger.rows',
            ),
            ("runs: one that was stopped counts as charged", "not lost and not ledger.rows and", "not lost and"),
            (
                "runs: a journal of an earlier version is never lost",
                "ledger.rows and row.begun is not None:",
                "ledger.rows:",
            ),
            ("runs: one with a damaged journal spent nothing", "journal=False), True", "journal=False), lost"),
            (
                "runs: exposed messages of a stopped one count so far",
                "turns = 0 if limited else row.planned",
                "turns = 0 if True else row.planned",
            ),
            ("runs: earlier versions' early ends count so far", 'if early and "turns" not in kept', "if False"),
            (
                "runs: all deals are one",
                "found.setdefault(place if deal is None else deal, [])",
                'found.setdefault("one", [])',
            ),
            (
                "runs: unknown deals are one",
                "found.setdefault(place if deal is None else deal, [])",
                "found.setdefault(deal, [])",
            ),
            ("runs: a client is the same in all deals", "unit if len(deals) < 2 else Unit.RECORD", "unit"),
            ("runs: the cheapest deal", "max(known, default=0.0) if", "min(known, default=0.0) if"),
            ("runs: a deal without bound is forgotten", "if len(known) == len(values) else None", "if True else None"),
            (
                "runs: other deals' noise for records protects clients",
                "if not _record_level(one)] + bare, unit",
                "if not _record_level(one)], unit",
            ),
            (
                "runs: a limit goes by one deal",
                'else total["epsilon"][view]\n    if',
                'else (within or total["epsilon"])[view]\n    if',
            ),
            ("runs: a limit of some runs is one of all", "and len(configurations) == runs", ""),
            (
                "plan: spare turns are forgotten",
                "math.sqrt(told.turns / (1",
                "math.sqrt(told.schedule.turns / (1",
            ),
            ("plan: accuracies are forgotten", "1 - told.calibration.kept", "1.0"),
            (
                "plan: what sites promise is forgotten",
                '{**found, "promised": max(promised)} if promised else found',
                "found",
            ),
            ("runs: files that were gone when a run is removed", "(lost or not store", "(not store"),
            ("runs: one that never began has lost its files", "row.begun is not False and (", "True and ("),
            ("runs: one that goes on has lost its journal", "if went_on(row, store):", "if False:"),
            ("runs: promises cost nothing", '+ sum(one["promised"][0]', '+ 0 * sum(one["promised"][0]'),
            ("runs: all observers are outsiders", 'spent["mu"][VIEWS.index(view)]', 'spent["mu"][0]'),
            ("runs: all observers are the server", 'spent["mu"][VIEWS.index(view)]', 'spent["mu"][-1]'),
            ("runs: a record moves its client's share by its bound only", "1 / (2 * mu)", "1 / mu"),
            (
                "runs: noise for records protects clients",
                "[None if _record_level(run) else",
                "[0 if _record_level(run) else",
            ),
            ("runs: what left bare costs records nothing", "return (_recipe(INFINITE, view),)", "return ()"),
            ("runs: a limit does not bind methods", "mu <= most * (1 + 1e-9)", "True"),
            ("runs: people are known by equal files alone", "same_people(row.people, people)", "row.people == people"),
            (
                "runs: a plan forgets that states expose",
                "exposed = any(release.exposes_history() for release in releases)",
                "exposed = False",
            ),
            ("runs: a lost journal has one attempt", "_repeated(plan, 1 + row.given_up)", "plan"),
            (
                "runs: a plan counts one matrix",
                "same_for_all(matrix), needs.matrices),)",
                "same_for_all(matrix), 1),)",
            ),
        ],
    ),
    (
        "store/journal.py",
        "tests/experiment/test_other_machines.py tests/store/test_journal.py "
        "tests/store/test_lost_journals.py tests/experiment/test_own_randomness.py",
        [
            ("own code: other values are used", "elif known != drawn:", "elif False:"),
            (
                "own code: answers are not written down",
                "self._append(_sealed(_answer(question, drawn), self._last))",
                "pass",
            ),
            ("own code: nobody is told that a run was given up", "self._append(_sealed(GIVEN_UP, self._last))", "pass"),
            ("own code: a script goes on", "        if self._gives_up:\n", "        if False:\n"),
            (
                "own code: answers are forgotten at checkpoints",
                "_Found([], self._owed, self._answers, head, self._machine)",
                "_Found([], self._owed, {}, head, self._machine)",
            ),
            (
                "own code: what was given up is not counted",
                "for row, _ in found.given_up + found.rows]",
                "for row, _ in found.rows]",
            ),
            ("own code: altered answers are read", "if link != _seal(body, previous):", "if False:"),
            (
                "journal: one that is gone had no rows",
                "            if begun:\n                raise",
                "            if False:\n                raise",
            ),
            (
                "journal: an emptied one had no rows",
                "        if begun and not place:\n            raise",
                "        if False:\n            raise",
            ),
            (
                "journal: a truncated one is short",
                "truncated, head = end < head.end,",
                "truncated, head = False,",
            ),
            ("journal: lost charges are not repeated", "if found.truncated and (moved or durable):", "if False:"),
            ("journal: lost charges are not counted", "    if found.truncated:\n", "    if False:\n"),
            (
                "journal: the head says no end",
                "        os.pwrite(file, self._head.encode(), 0)\n\n",
                "\n",
            ),
            ("journal: the head may say anything", "if content.startswith(head.encode()) else None", ""),
            ("journal: the head may tell of another end", "ends.get(head.end) != head.tail", "False"),
            ("journal: another run's head is taken", "(head.previous, head.run) == (previous, _name(path))", "True"),
            ("journal: own code's charges stay in memory", "        if self._durable:\n", "        if False:\n"),
            (
                "journal: power cuts lose nothing",
                "not in (ON_DISK, _boot())",
                "not in (ON_DISK, self.head.boot)",
            ),
            ("journal: after a power cut others go on", "if found.may_lack_rows and (moved or durable):", "if False:"),
            (
                "journal: nothing was asked before a power cut",
                "if found.may_lack_rows and (found.given_up or not rows):",
                "if False:",
            ),
            (
                "journal: a loss is forgotten when a run goes on",
                "LOST if found.truncated else found.head.boot if found.may_lack_rows else",
                "",
            ),
            (
                "journal: what is owed is dropped",
                "_Found([], self._owed, self._answers, head, self._machine)",
                "_Found([], [], {}, head, self._machine)",
            ),
            ("machines: every one is the same", "moved = found.machine != machine", "moved = False"),
            (
                "machines: an unknown one is the same",
                "moved = found.machine != machine",
                'moved = found.machine not in ("", machine)',
            ),
            (
                "machines: what was asked elsewhere is asked alike",
                "given_up=[*found.given_up, *found.rows], rows=[], answers={}, machine=machine)",
                "machine=machine)",
            ),
            (
                "machines: what was asked elsewhere is not charged",
                "given_up=[*found.given_up, *found.rows], rows=[], answers={}, machine=machine)",
                "rows=[], answers={}, machine=machine)",
            ),
            (
                "machines: what was given up before is not charged",
                "given_up=[*found.given_up, *found.rows], rows=[], answers={}, machine=machine)",
                "given_up=found.rows, rows=[], answers={}, machine=machine)",
            ),
            ("machines: giving up is not written down", "if moved or not begun or", "if not begun or"),
            ("machines: what was given up is asked alike later", "    if found.given_up:\n", "    if False:\n"),
            ("machines: nobody writes down which one", "    if found.machine:\n", "    if False:\n"),
            (
                "machines: forgotten at checkpoints",
                "_Found([], self._owed, self._answers, head, self._machine)",
                "_Found([], self._owed, self._answers, head)",
            ),
        ],
    ),
    (
        "parts/thresholds.py",
        "tests/parts/test_normalised_updates.py",
        [
            ("normalised: declared as clipped", "at=at, normalised=True)", "at=at)"),
            ("normalised: the length never shrinks", 'if self.decay == "linear" else 1.0', "if False else 1.0"),
            ("normalised: a length of zero at the end", "max(rounds - done, 1) / rounds", "(rounds - done) / rounds"),
            ("normalised: shrinks from where it is", 'state["first"] * left', 'state["clip"] * left'),
        ],
    ),
    (
        "features/extractor.py",
        "tests/features/test_extractors.py tests/features/test_runs.py",
        [
            ("features: any weights at a site", "        if content is None:\n", "        if False:\n"),
            ("features: other weights are taken", "if choice.digest not in (None, found):", "if False:"),
            ("features: records may be mixed", "    if mixed:\n", "    if False:\n"),
            ("features: extractors may draw", "    if not same:\n", "    if False:\n"),
            ("features: extractors may remember", "    if changed is not None:\n", "    if False:\n"),
            ("features: in training mode", "module.eval().requires_grad_(False)", "module.requires_grad_(False)"),
            (
                "features: the digest leaves out weights",
                "for name, tensor in sorted(tensors.items()):",
                "for name, tensor in ():",
            ),
            ("features: clients' own records are public", "if shared > FEW * min(", "if shared > 1e9 * min("),
            ("features: shared records are not told", "    if not shared:\n", "    if True:\n"),
            ("features: a user's code has records in batches", "if own else self.module", "if False else self.module"),
            ("features: other machines' features are read", ", describe_machine(device), self", ", '', self"),
            (
                "features: unsaved tensors do not decide",
                "module.state_dict() | dict(tensors_of(module)))",
                "module.state_dict())",
            ),
            ("features: the first records decide", "    if remembering:\n", "    if False:\n"),
            ("features: code begins to remember", "        if changed is not None:\n", "        if False:\n"),
            (
                "features: code begins to remember in its class or file",
                "changed or first_change(seen, homes.seen({}, self.module))",
                "changed",
            ),
            ("features: code that has changed", 'if found.digest != document["digest"]:', "if False:"),
            ("features: nobody asks what weights were trained on", "if choice.trained_on is None:", "if False:"),
        ],
    ),
    (
        "deploy/site/rules.py",
        "tests/deploy/test_rules.py tests/features/test_runs.py",
        [
            ("features: settings name code", "or name.startswith(FEATURES)", ""),
            ("features: any extractor at a site", 'if given["extractor"] not in allowed:', "if False:"),
            ("features: a server names files", 'if given.get("weights") is not None or', "if"),
        ],
    ),
    (
        "deploy/terms.py",
        "tests/features/test_runs.py",
        [("features that travel do not decide", "| _features(experiment)\n\n", "\n\n")],
    ),
    (
        "features/cache.py",
        "tests/features/test_cache.py",
        [
            ("features: damaged files are read", "or file.read(DIGEST) != digest.digest()", "or False"),
            (
                "features: half a file under its name",
                "unfinished.replace(path)",
                "path.write_bytes(unfinished.read_bytes())",
            ),
            ("features: nobody waits", "fcntl.flock(file, fcntl.LOCK_EX)", "pass"),
            ("features: the file is changed", 'mode="c"', 'mode="r+"'),
        ],
    ),
    (
        "parts/averaging.py",
        "tests/parts/test_averaging.py",
        [("averages: all rounds count alike", "(LATER + 1) / (LATER + number)", "1 / number")],
    ),
    (
        "tasks/task.py",
        "tests/tasks/test_classification.py",
        [("task: one without classes has none to tell", "raise UserError(", "return tuple(")],
    ),
    (
        "tasks/classification.py",
        "tests/tasks/test_classification.py tests/parts/test_blending.py",
        [
            ("task: a single class is learned", "if self.width < 2:", "if False:"),
            ("task: public records of more classes fit", "and other.width <= self.width", ""),
            ("task: a record is judged by its own label", " - functional.one_hot(targets, self.width)", ""),
        ],
    ),
    (
        "tasks/classification.py",
        "tests/tasks/test_classification.py tests/methods/test_dp_fedsgd.py tests/federation/test_recalibrate.py",
        [
            ("dp-fedsgd: counts of no record", "clamp(min=1 / records)", "clamp(min=1e-30)"),
            ("recalibrate: one label is worth all", "* count / (count - 1)", "+ len(groups)"),
        ],
    ),
    (
        "tasks/regression.py",
        "tests/tasks/test_regression.py tests/test_tasks.py",
        [
            (
                "numbers: a target outside the range keeps its value",
                "held = np.clip(targets.astype(np.float64), self.low, self.high)",
                "held = targets",
            ),
            (
                "numbers: a row of counts is longer than its bound",
                "targets.unsqueeze(-1) / self._longest",
                "targets.unsqueeze(-1)",
            ),
            ("numbers: the mean is taken in another scale", "(means * self._longest)", "means"),
            ("numbers: intervals forget what was fitted", "found[1] += math.log(more)", "found[1] += 0"),
            ("numbers: mixtures forget how far members differ", "(variances + (means - mean).square())", "variances"),
        ],
    ),
    (
        "tasks/error_sums.py",
        "tests/tasks/test_paid_sums.py",
        [
            ("paid sums: errors are not held to the limit", "np.clip(one / LIMIT, -1, 1)", "one / LIMIT"),
            ("paid sums: near records have rows that are too long", "SHARES[1:5].sum())", "4 * SHARES.sum())"),
            ("paid sums: intervals of errors forget the noise", "spread = noise[1] + max(", "spread = max("),
            ("paid sums: drowned errors are told", "if math.sqrt(noise[1]) < DROWNED * value[1]:", "if True:"),
            ("withheld: errors of hardly any records are told", "if not released.deviation < FEW * ", "if 0 * "),
            ("withheld: errors of few records are told", "FEW = 0.2\n", "FEW = 0.6\n"),
            ("withheld: drowned squares are told", "if not math.sqrt(noise[2]) < DROWNED * value[2]:", "if False:"),
            (
                "withheld: shares of a drowned variance are told",
                "if not math.sqrt(noise_variance(released, variance)) < DROWNED * held:",
                "if False:",
            ),
        ],
    ),
    (
        "tasks/intervals.py",
        "tests/federation/test_evaluation.py tests/tasks/test_paid_sums.py",
        [
            ("withheld: four times the noise drowns", "DROWNED = 0.5\n", "DROWNED = 2.0\n"),
            (
                "withheld: noise of one cell is that of all",
                "released.deviation * math.sqrt(len(cells)) < DROWNED",
                "released.deviation < DROWNED",
            ),
            ("withheld: drowned shares are told", "if not is_known(released, cells):", "if False:"),
        ],
    ),
    (
        "tasks/histogram.py",
        "tests/federation/test_evaluation.py",
        [
            ("withheld: areas of a drowned class are told", "if is_known(released, rare) and", "if"),
            ("withheld: areas of drowned others are told", " and is_known(released, common):", ":"),
            ("withheld: recall of a drowned class is told", "recall, rare)", "recall, everybody)"),
            (
                "withheld: drowned calibration is told",
                '["calibration"] = None\n    if is_known(released, everybody):',
                '["calibration"] = None\n    if True:',
            ),
            (
                "withheld: drowned calibration of classes is told",
                '"calibration": None}\n    if is_known(released, everybody):',
                '"calibration": None}\n    if True:',
            ),
        ],
    ),
    (
        "tasks/several.py",
        "tests/tasks/test_several.py",
        [
            (
                "paid sums: rows of several outcomes are too long",
                "np.concatenate(rows, axis=1) / len(self.parts) ** 0.5",
                "np.concatenate(rows, axis=1)",
            ),
            (
                "several: a row of counts is longer than its bound",
                "torch.cat(found, dim=-1) / len(self.parts) ** 0.5",
                "torch.cat(found, dim=-1)",
            ),
            ("several: the mean is over known and unknown", "/ known.sum(axis=0)", "/ len(known) / 2"),
            (
                "withheld: the noise on one of several outcomes is told too small",
                "Released(mine * whole, released.deviation * whole,",
                "Released(mine * whole, released.deviation,",
            ),
        ],
    ),
    (
        "tasks/brier_sums.py",
        "tests/tasks/test_paid_sums.py",
        [
            ("paid sums: rows of times are too long", "ERROR * np.sqrt(weights) * later", "ERROR * later"),
            (
                "paid sums: errors behind an event count whole",
                "np.sqrt(np.where(share > 0, share, 1.0))",
                "share.min()",
            ),
            ("paid sums: nobody was lost from sight", "(behind / at_events).sum()", "behind.sum()"),
            (
                "paid sums: intervals of scores forget the noise",
                "SURE * math.sqrt(noise + value",
                "SURE * math.sqrt(value",
            ),
            (
                "withheld: curves of hardly any records are told",
                "if not (total > 0 and (noisy < FEW * total * self._shares(released.counts)[2]).all()):",
                "if False:",
            ),
            ("withheld: curves of few records are told", "FEW = 0.25\n", "FEW = 1.0\n"),
            (
                "withheld: the first interval alone decides",
                "(noisy < FEW * total * self._shares(released.counts)[2]).all()",
                "noisy[0] < FEW * total",
            ),
            ("withheld: drowned scores are told", "if math.sqrt(noise) < DROWNED * value:", "if True:"),
            ("withheld: calibration without a meaning is told", "if away < DROWNED:", "if True:"),
            (
                "withheld: negative hazards are held to zero",
                "events / np.maximum(at_risk - last_seen / 2, LEAST_AT_RISK), 1)",
                "np.maximum(events, 0) / np.maximum(at_risk - last_seen / 2, LEAST_AT_RISK), 1)",
            ),
            (
                "withheld: negative losses are held to zero",
                "last_seen / np.maximum(at_risk - events / 2, LEAST_AT_RISK), 1)",
                "np.maximum(last_seen, 0) / np.maximum(at_risk - events / 2, LEAST_AT_RISK), 1)",
            ),
        ],
    ),
    (
        "tasks/survival.py",
        "tests/tasks/test_survival.py",
        [
            (
                "times: a record last seen counts for its interval",
                "through = ends <= times",
                "through = begins < times",
            ),
            ("times: events behind the last cut count", "(events > 0) & ~late", "events > 0"),
            ("times: who was last seen inside counts whole", "entered - inside / 2", "entered"),
        ],
    ),
    (
        "terms.py",
        "tests/tasks/test_classification.py",
        [("task: nobody asks whether it can be learned", "    task.check()\n", "")],
    ),
    (
        "methods/pfedsd.py",
        "tests/tasks/test_classification.py",
        [("task: pFedSD distils whatever is predicted", "if self.weight > 0:", "if False:")],
    ),
    (
        "methods/acdp_pfsd.py",
        "tests/tasks/test_classification.py",
        [("task: ACDP-pFSD distils whatever is predicted", 'if self.distillation != "none":', "if False:")],
    ),
    (
        "parts/server_optimizers.py",
        "tests/parts/test_server_optimizers.py",
        [
            ("the server steps backwards", "model + self.rate * factor", "model - self.rate * factor"),
            ("the server's rate is ignored", "self.rate * factor * direction", "factor * direction"),
            ("the schedule of the server's rate is ignored", "self.rate * factor * direction", "self.rate * direction"),
            ("momentum is forgotten", 'return momentum, {"momentum": momentum}', "return momentum, state"),
            ("momentum is a mean", 'state["momentum"] + change', 'state["momentum"] + (1 - self.beta) * change'),
            ("squares are forgotten", '"squares": squares}', '"squares": state["squares"]}'),
            ("squares start at zero", "torch.full_like(model, self.tau**2)", "torch.zeros_like(model)"),
            ("the adaptive mean is a sum", "(1 - self.beta1) * change", "change"),
            ("steps without tau", "(squares.sqrt() + self.tau)", "squares.sqrt()"),
            ("Adagrad forgets", "return squares + square\n", "return square\n"),
            ("Adam adds squares up", "self.beta2 * squares + (1", "squares + (1"),
            (
                "Yogi moves away from the square",
                "squares - (1 - self.beta2) * square",
                "squares + (1 - self.beta2) * square",
            ),
            ("one state for all models", "{name: rows[row] for", "{name: rows[0] for"),
            ("all models but the one move", "_with_row(models, row, moved)", "_with_row(models, 0, moved)"),
        ],
    ),
    (
        "methods/dp_fedavg.py",
        "tests/parts/test_server_optimizers.py",
        [
            ("the server optimizer's state is not kept", "server.model, server.motion =", "server.model, _ ="),
            (
                "the server optimizer begins anew in each round",
                'got.mean("update"), server.motion)',
                'got.mean("update"), self.server.begin(model))',
            ),
        ],
    ),
    (
        "methods/pacfl.py",
        "tests/parts/test_server_optimizers.py",
        [
            (
                "clusters share one server state",
                "        server.motion = self.server.begin(server.models)\n",
                "",
            )
        ],
    ),
    (
        "parts/blending.py",
        "tests/parts/test_blending.py tests/federation/test_blend.py tests/federation/test_recalibrate.py",
        [
            ("blend: the mean is not adjusted", "found[[ADJUSTED, AVERAGED_ADJUSTED]]", "found[[ADJUSTED]]"),
            ("recalibrate: noise asks for more records", "1 / ENOUGH + DOUBT", "1 / ENOUGH - DOUBT"),
            (
                "recalibrate: noise on clients drowns as much",
                "DOUBT * TRUSTED[unit]",
                "DOUBT * TRUSTED[Unit.RECORD]",
            ),
        ],
    ),
    (
        "tasks/recalibration.py",
        "tests/tasks/test_recalibration.py",
        [
            ("recalibrate: the slope is free", "SLOPE = 3.0", "SLOPE = 0.03"),
            ("recalibrate: offsets have the intercept's penalty", "OFFSETS = 0.6", "OFFSETS = 0.3"),
            ("recalibrate: the slope is drawn to zero", "[found[:1] - 1, found[1:]]", "[found[:1], found[1:]]"),
            ("recalibrate: a few steps at the most", "STEPS = 100", "STEPS = 2"),
            ("recalibrate: steps are not halved", "HALVINGS = 40", "HALVINGS = 1"),
            ("recalibrate: the step that is not halved is taken", "if lower < value - 1e-4", "if True or value - 1e-4"),
            ("recalibrate: a target is not subtracted", "shares.new_full((), -1.0)", "shares.new_full((), 0.0)"),
            ("recalibrate: classes do not meet", "- shares.T @ shares", "- 0 * shares.T @ shares"),
        ],
    ),
    (
        "federation/blending.py",
        "tests/federation/test_recalibrate.py tests/federation/test_blend.py",
        [
            (
                "recalibrate: a record is judged by a fit that has seen it",
                "self._task.recalibrate(said[~inside], targets[~inside])",
                "self._task.recalibrate(said, targets)",
            ),
            (
                "recalibrate: few records make a mean",
                "features = math.prod(clients.data.shape) + 1",
                "features = math.prod(clients.data.shape)",
            ),
            (
                "recalibrate: records of common labels count alike",
                "enough = self._task.effective_records(targets.numpy()) > self._enough",
                "enough = len(targets) > self._enough",
            ),
            ("recalibrate: noise changes nothing", '"feasible": feasible,', '"feasible": math.inf,'),
            ("recalibrate: nobody takes the mean", "if enough and alone is not None", "if False and alone is not None"),
            ("recalibrate: a local model that overflowed is mixed", "if enough and alone is not None", "if enough"),
            (
                "recalibrate: a server's model that overflowed is taken",
                "rows.isfinite().all() and model.isfinite().all()",
                "True",
            ),
            (
                "recalibrate: a model without records is taken for sound",
                "rows.isfinite().all() and model.isfinite().all()",
                "rows.isfinite().all()",
            ),
            (
                "recalibrate: the method's model where the server's overflowed",
                "found[LOCAL if self._server or not self._own_is_sound(place) else OWN] = 1",
                "found[LOCAL if not self._own_is_sound(place) else OWN] = 1",
            ),
            (
                "recalibrate: a model that nobody trained",
                "found[LOCAL if self._server or not self._own_is_sound(place) else OWN] = 1",
                "found[LOCAL if self._server else OWN] = 1",
            ),
            (
                "recalibrate: nothing is fitted",
                "powers[RECALIBRATED], added[RECALIBRATED] = self._task.recalibrate(served, targets)",
                "pass",
            ),
            ("recalibrate: clients blend all the same", '"recalibrate": Recalibrating', '"recalibrate": Blending'),
        ],
    ),
    (
        "parts/blending.py",
        "tests/federation/test_recalibrate.py",
        [("recalibrate: the mean over rounds is recalibrated", "RECALIBRATED: ADJUSTED}", "RECALIBRATED: AVERAGED}")],
    ),
    (
        "experiment/blends.py",
        "tests/federation/test_recalibrate.py",
        [
            (
                "recalibrate: pieces of earlier rules are kept",
                "if _whole(path) and _has_rules(path):",
                "if _whole(path):",
            ),
            (
                "blend: pieces with other ways to train alone are kept",
                "return piece.metadata() == RULES_OF and set",
                "return set",
            ),
        ],
    ),
    (
        "experiment/budgeting.py",
        "tests/federation/test_recalibrate.py",
        [
            (
                "recalibrate: models that are given away are not told of",
                "[GIVEN_AWAY[experiment.personal]] if experiment.personal in GIVEN_AWAY",
                '[GIVEN_AWAY[experiment.personal]] if experiment.personal == "blend"',
            )
        ],
    ),
    (
        "deploy/site/end.py",
        "tests/deploy/test_equality.py",
        [
            (
                "recalibrate: sites keep the method's models",
                "if not makes_mixtures(terms.experiment.personal, terms.learner.task):",
                'if terms.experiment.personal != "blend":',
            )
        ],
    ),
    (
        "trained/models.py",
        "tests/trained/test_trained.py",
        [
            (
                "recalibrate: labels of earlier versions are forgotten",
                'else offsets(self.tensor("labels")[row])',
                'else 0 * offsets(self.tensor("labels")[row])',
            ),
            (
                "recalibrate: a network that is mixed may be missing",
                "if not made.keys() >= {NETWORKS[member] for member in there}:",
                "if False:",
            ),
        ],
    ),
    (
        "federation/blending.py",
        "tests/federation/test_blend.py",
        [
            (
                "blend: the mean is judged by the last model",
                "said[AVERAGED_ADJUSTED] = said[AVERAGED]",
                "said[AVERAGED_ADJUSTED] = said[ADJUSTED]",
            ),
            ("blend: everybody has the first cluster's models", "message[name][mine]", "message[name][mine * 0]"),
            (
                "blend: clients train alone with the federation's settings",
                "return [*found, bold] if linear else found",
                "return found[:1]",
            ),
            ("blend: the worst way to train alone is taken", "int(np.argmax([self._fit(", "int(np.argmin([self._fit("),
            ("blend: a training that overflowed is taken", "return -math.inf", "return math.inf"),
            (
                "blend: a client has another's best training",
                "self._trainings[number], places)",
                "self._trainings[0], places)",
            ),
        ],
    ),
    (
        "federation/server.py",
        "tests/federation/test_failing_steps.py tests/federation/test_blend.py tests/experiment/test_stopping.py "
        "tests/experiment/test_resume.py tests/deploy/test_run_state.py",
        [
            (
                "a script ends the program",
                "except (SystemExit, GeneratorExit) as error:",
                "except ZeroDivisionError as error:",
            ),
            ("a script reads accuracies on raw records", "self._in_script = True", "self._in_script = False"),
            ("server: a resumed run begins its mean anew", "else restored.averaged", "else None"),
            ("lasting: a script that has ended is run again", "and self._run_state.restored.over:", "and False:"),
            ("server: sites are asked again after a kill", "self._run_state.saves_every_round or", ""),
            ("lasting: nobody says that the script has ended", "replace(self._now(), over=True)", "self._now()"),
            (
                "outlet: a run ends although a step failed",
                "        self._transport.check()\n        self._leave()\n        until",
                "        self._leave()\n        until",
            ),
            (
                "server: rounds that were passed over are as scheduled",
                "for key, who in paid.items()} == wanted",
                "for key, who in paid.items()}.items() <= wanted.items()",
            ),
            (
                "server: questions put twice are as scheduled",
                "{key: sorted(who) for key",
                "{key: sorted(set(who)) for key",
            ),
            ("server: what is due once may be left out", "{(None, *name): everybody for name in once}", "{}"),
            (
                "server: a cheap release excuses a dear one",
                "== wanted and all(",
                ".keys() and {key[0] for key in paid} == {key[0] for key in wanted} and all(",
            ),
            (
                "server: single messages are read by choice",
                "rounds[name] - unread <= read[name] <= rounds[name] for",
                "True for",
            ),
        ],
    ),
    (
        "experiment/result.py",
        "tests/experiment/test_stopping.py",
        [
            (
                "summary: an early end costs what was charged",
                "charged if ending.as_scheduled else whole(",
                "charged if True else whole(",
            ),
            (
                "summary: sums count an early end as charged",
                "**spending_of_ledger(ledger),",
                "**spending_of_ledger(charged),",
            ),
        ],
    ),
    (
        "store/run_summary.py",
        "tests/experiment/test_summary.py",
        [
            (
                "summary: figures of records are not stored",
                "found |= {} if value is None else value.to_dict()",
                "found |= {}",
            ),
            (
                "summary: figures of records are not read",
                'if "epsilon_replace_one" in document:',
                "if False:",
            ),
            ("summary: the class of recall is always named", "{} if self.metrics is None else {", "{"),
        ],
    ),
    (
        "store/ledger_rows.py",
        "tests/experiment/test_stopping.py tests/store/test_account.py",
        [
            ("account: a result below its charges is right", "or printed[view] < said[view]", "or False"),
            ("any result follows from a ledger", "return abs(one - other) <= 1e-6 * max(1.0, abs(one))", "return True"),
        ],
    ),
    (
        "store/importing.py",
        "tests/store/test_importing.py",
        [
            ("import: every time anew", "here = known.get(row.origin, [])", "here = []"),
            ("import: less replaces more", "else larger(former[1], spent)", "else former[1]"),
            (
                "import: copies of a run are one, whatever they released",
                "earlier = not _finished(row) and any(",
                'earlier = any(one.state != "imported" for one in here) or any(',
            ),
            ("import: own code repeats itself", "repeats = not (row.nonce or other.nonce) and", "repeats ="),
            ("import: every ledger begins with every other", "and links.startswith(others)", ""),
            ("import: two ends are one", "and row.seconds == other.seconds:", ":"),
            ("import: one end is two", "and row.seconds == other.seconds:", "and False:"),
            ("import: own files of earlier versions are strangers", "return found.people", "return row.people"),
        ],
    ),
    (
        "store/store.py",
        "tests/store/test_importing.py tests/store/test_store.py tests/federation/test_failing_steps.py "
        "tests/test_assembly.py",
        [
            ("store: new runs where others are lost", "        self._database.check_runs()\n", ""),
            ("the ledger has no chain of its own", 'if previous != found["link"]:', "if False:"),
            ("import: another store's limit is this one's", '"budget_over_runs": None, PLANNED', "PLANNED"),
            ("outlet: a failed run looks like a stopped one", '"stopped" if failed is None else "failed"', '"stopped"'),
            (
                "outlet: the last failure replaces the first",
                "{FAILED: what} | configuration",
                "configuration | {FAILED: what}",
            ),
        ],
    ),
    (
        "assembly.py",
        "tests/experiment/test_resume.py tests/federation/test_failing_steps.py tests/test_assembly.py",
        [
            ("checkpoints leave out what clients remember", "attach(transport.memory)", "attach(None)"),
            ("own steps may blame the machine everywhere", "own=not prepared.repeats", "own=False"),
        ],
    ),
    (
        "store/checkpoint.py",
        "tests/store/test_store.py",
        [("litter: what safetensors began stays", ', ".tmp*")', ")")],
    ),
    (
        "store/database.py",
        "tests/store/test_importing.py tests/store/test_store.py tests/store/test_lost_journals.py",
        [
            ("import: tables of any shape", "if tables != _statements(made):", "if False:"),
            (
                "store: folders of runs are looked at before the lock",
                "if not version and not tables:\n",
                "if not version and not tables:\n            if run_folders(self._folder):\n"
                '                raise damaged(self._folder, "")\n',
            ),
            ("store: runs may be lost", "if self._has_totals and self._totals() !=", "if False and self._totals() !="),
            (
                "store: runs are not counted",
                "(len(digests), _sum_digests(digests)):",
                "(self._totals()[0], _sum_digests(digests)):",
            ),
            (
                "store: lost runs are known again",
                "(len(digests), _sum_digests(digests)):",
                "(len(digests), self._totals()[1]):",
            ),
            (
                "litter: a folder that is gone is a full disk",
                "if of_run is not None and not of_run.is_dir():",
                "if False:",
            ),
            ("store: two numbers of runs are one", "if len(found) != 1:", "if not found:"),
            (
                "store: one run may be read where others are lost",
                """            self._check_totals([row["digest"] for row in found])""",
                """            run is None and self._check_totals([row["digest"] for row in found])""",
            ),
            (
                "store: a ledger may be read where runs are lost",
                """            self._check_totals([row["digest"] for row in runs])\n""",
                "",
            ),
            (
                "store: earlier ones never count their runs",
                'if kind == "immediate" and not',
                'if kind == "never" and not',
            ),
            ("store: altered rows are counted", "for row in self.runs()]", 'for row in self.select("runs")]'),
        ],
    ),
    (
        "data/federate.py",
        "tests/store/test_deals.py tests/experiment/test_places.py tests/report/test_neighbours.py "
        "tests/experiment/test_identity.py",
        [
            ("deals: other records are the same", "[dataset.x, dataset.y, torch", "[dataset.y, torch"),
            ("who is tested does not decide", "for order in orders]", "for order in orders[:1]]"),
            ("deals: everybody holds everything", ", torch.from_numpy(np.asarray(owner))])", "])"),
            ("deals: owners have no names", "dataset.people, *dataset.owner_names]", "dataset.people]"),
            (
                "test records follow labels",
                "test_fraction, split_rng)[member]\n    train",
                "test_fraction, random_stream(int(dataset.y.sum()), 1))[member]\n    train",
            ),
            ("equal rows at several clients are not told", ", *same_rows(x.numpy(), y.numpy(), sizes)]", "]"),
        ],
    ),
    (
        "util/files.py",
        "tests/util/test_files.py",
        [
            (
                "lasting: a file takes another's place",
                "replace_file(temporary, unused_path(wanted))",
                "replace_file(temporary, wanted)",
            ),
            ("lasting: a device is read", "if not stat.S_ISREG(found.st_mode):", "if False:"),
            ("lasting: a file of any length is read", "if found.st_size > limit:", "if False:"),
            ("lasting: a file that hides its length is read", "if len(content) > limit:", "if False:"),
            ("damaged files are read", "if found != self.digest:", "if False:"),
        ],
    ),
    (
        "util/toml.py",
        "tests/util/test_toml.py",
        [("lasting: a number that was cut is taken", "if CUT.search(text):", "if False:")],
    ),
    (
        "deploy/site/end.py",
        "tests/deploy/test_failures.py",
        [
            (
                "lasting: models of a stopped end stay",
                '        if f"{MODELS}/{path.name}" not in kept:',
                "        if False:",
            )
        ],
    ),
    (
        "flower/carrier.py",
        "tests/flower/test_carrier.py",
        [
            (
                "carrier: a message that a dead site took is waited for",
                "if connections.get(node) != self._connections.get(node):",
                "if False:",
            )
        ],
    ),
    (
        "store/merging.py",
        "tests/store/test_merging.py",
        [
            ("merging: every time anew", "if one.origin == row.origin]", "if False]"),
            ("merging: an older copy takes the place", "if here.summary is not None:", "if False:"),
            ("merging: other releases are forgotten", "and contains(row, links, here, mine)", ""),
            (
                "merging: a copy forgets what was sent",
                "return not here.begun or row.sent or row.has_result or bool(links)",
                "return True",
            ),
            ("merging: what is out counts twice", "if row.sent and not mine and here.begun is False:", "if False:"),
            ("merging: a failure is forgotten", "if row.failed is not None and one.failed is None and", "if False and"),
        ],
    ),
    (
        "store/spending.py",
        "tests/store/test_merging.py",
        [("another store's limit counts", "if row.unit == unit and not row.merged]", "if row.unit == unit]")],
    ),
    (
        "cluster/study.py",
        "tests/cluster/test_without_nodes.py",
        [
            (
                "a cluster takes runs up whatever their limit",
                "if row is not None:  # it may have a limit of its own",
                "if False:  # it may have a limit of its own",
            )
        ],
    ),
    (
        "store/store.py",
        "tests/store/test_merging.py",
        [
            ("a run's name leads out of its store", "return Path(run).name == run", "return True or run == run"),
            (
                "what was merged here is not known",
                '_received(stored["configuration"], row, run, merged=True)',
                '_received(stored["configuration"], row, run, merged=False)',
            ),
        ],
    ),
    (
        "papers/headlines.py",
        "tests/papers/test_headlines.py",
        [
            ("dearer headlines are compared", "if _is_dearer(row):", "if False:"),
            ("figures of no code are current", "return bool(row.sources) and ", "return "),
        ],
    ),
    (
        "store/store.py",
        "tests/cluster/test_without_nodes.py",
        [("store: what was sent to a cluster costs nothing", "{JOURNAL: True, SENT: True}", "{SENT: True}")],
    ),
    (
        "store/run_files.py",
        "tests/experiment/test_other_machines.py tests/store/test_lost_journals.py "
        "tests/experiment/test_own_randomness.py tests/store/test_lifetime.py tests/experiment/test_resume.py",
        [
            ("machines: run files do not ask which one", "begun, machine, durable)", 'begun, "", durable)'),
            ("journal: own code's is as any other", "begun, machine, durable)", "begun, machine, False)"),
            ("machines: nobody says how often", "if attempts > row.given_up:", "if False:"),
            ("run files: a forked process goes on", "if os.getpid() != self._process:", "if False:"),
            ("run files: a forked process closes the journal", "if os.getpid() == self._process:", "if True:"),
            ("run files: nobody says that there is a journal", "if row.sent or not row.begun:", "if False:"),
            (
                "run files: any lost journal is a cluster's",
                "row.begun and not (row.sent and not",
                "row.begun and not (not",
            ),
            ("run files: a limit over runs is not kept", "row.planned) if limited else None", "row.planned) and None"),
            (
                "run files: clients have forgotten everything after a resume",
                "memory.take_over(self.folder, self._snapshot)",
                "pass",
            ),
            ("own code: run files do not keep answers", "self._journal.answered(question, drawn)", "pass"),
            ("own code: what was given up costs nothing", "            self.ledger.append(spent, link)\n", ""),
            (
                "own code: what was given up is not stored",
                "self._pending.ledger.append((len(self.ledger.rows), spent, link))",
                "pass",
            ),
        ],
    ),
    (
        "experiment/identity.py",
        "tests/experiment/test_other_machines.py tests/experiment/test_own_randomness.py "
        "tests/experiment/test_identity.py",
        [
            ("machines: all processors are one kind", "hashlib.sha256(json.dumps(kind).encode()).hexdigest()", '""'),
            ("machines: instructions do not matter", "torch.backends.cpu.get_cpu_capability()", '""'),
            ("machines: versions of torch do not matter", '"torch": torch.__version__', '"torch": ""'),
            ("machines: versions of numpy do not matter", '"numpy": np.__version__', '"numpy": ""'),
            ("machines: rounding of products does not matter", "torch.get_float32_matmul_precision()", '""'),
            ("machines: switches do not matter", "for name in SWITCHES if name in os.environ", "for name in ()"),
            ("machines: architectures do not matter", "platform.machine(), ", ""),
            ("own code: own methods repeat themselves", "not is_own(method) and", ""),
            ("own code: own networks repeat themselves", "not is_own_network(network, module) and", ""),
            ("own code: graphics cards repeat themselves", 'torch.device(device).type == "cpu"', "True"),
            ("own code: settings are nobody's", "or any(is_own(part) for part in parts)", ""),
            ("own code: lists are nobody's", "parts = list(value)", "pass"),
            ("own code: dictionaries are nobody's", "parts = [*value, *value.values()]", "pass"),
            (
                "own code: only the class itself",
                "inspect.getmro(kind) if inspect.isclass(kind) else (kind,))",
                "(kind,))",
            ),
            ("own code: functions make no own network", "is_dotted(name) or not all(", "not all("),
            (
                "own code: layers make no own network",
                "is_dotted(name) or not all(_is_known(type(layer)) for layer in module.modules())",
                "is_dotted(name)",
            ),
            (
                "own code: known by its name",
                "    path = Path(file).resolve()\n    within",
                "    if name in NOT_OURS:\n        return True\n    path = Path(file).resolve()\n    within",
            ),
            ("own code: no weights", 'return {"weights": digest.hexdigest()}', "return {}"),
            ("own code: weights without buffers", "*module.named_buffers(), ", ""),
            (
                "own code: weights without plain attributes",
                "*module.named_buffers(), *plain]",
                "*module.named_buffers()]",
            ),
            (
                "own code: weights without frozen ones",
                "*module.named_parameters(remove_duplicate=False)",
                "*((n, p) for n, p in module.named_parameters() if p.requires_grad)",
            ),
            ("own code: weights without their type", "(place, str(whole.dtype), ", "(place, "),
        ],
    ),
    (
        "experiment/prepare.py",
        "tests/experiment/test_own_randomness.py tests/experiment/test_identity.py",
        [
            ("own code: no nonce", "needs_nonce=own,", "needs_nonce=False,"),
            ("own code: everything repeats itself", "repeats=same,", "repeats=True,"),
            ("own code: coins of every run", "self.repeats, self.nonce)", "self.repeats)"),
            ("own code: nobody is told of a nonce", "[OWN_CODE] if own else []", "[]"),
        ],
    ),
    (
        "experiment/run.py",
        "tests/experiment/test_own_randomness.py tests/federation/test_failing_steps.py",
        [
            ("own code: a resumed run has another nonce", "else row.notes, nonce=row.nonce)", "else row.notes)"),
            (
                "outlet: a run that failed once hides it",
                "    if row.failed is not None:\n        why",
                "    if False:\n        why",
            ),
        ],
    ),
    (
        "simulator/serving.py",
        "tests/experiment/test_own_randomness.py",
        [("own code: workers' draws are not told", "answer.kept, answer.drawn)", "answer.kept, 0)")],
    ),
    (
        "simulator/engine.py",
        "tests/experiment/test_own_randomness.py",
        [
            ("own code: an engine's draws are not told", "bool(outcome.kept), outcome.drawn)", "bool(outcome.kept))"),
            ("own code: only the first unit's draws", "(answer.drawn for answer in answers)", "(answers[0].drawn,)"),
        ],
    ),
    (
        "privacy/accounting/across_runs.py",
        "tests/privacy/test_possibilities.py",
        [
            ("possibilities: the cheapest of a run", "np.max([upper_deltas", "np.min([upper_deltas"),
            ("possibilities: the cheaper direction", "max(losses.epsilon(delta) for", "min(losses.epsilon(delta) for"),
            (
                "possibilities: equal runs count once",
                "compose_masses(masses, list(kinds.values())",
                "compose_masses(masses, [1] * len(kinds)",
            ),
            ("possibilities: runs of one recipe are forgotten", ", (certain,))", ")"),
            ("possibilities: losses change no signs", "_bends(opposite, grid)[::-1]", "_bends(deltas, grid)[::-1]"),
            ("possibilities: what masses lack is forgotten", "max(0.0, float(lacking.max()))", "0.0"),
            ("possibilities: negative losses are not looked at", "[[1.0], 1 - np.exp(", "[[1.0], 0 - np.exp("),
            ("possibilities: infinite losses are forgotten", "losses.infinite + deltas + doubt", "deltas + doubt"),
            (
                "possibilities: each run has all of delta",
                "delta / len(runs)) for recipe in run) for",
                "delta) for recipe in run) for",
            ),
            ("possibilities: the cheapest Gaussian", "squares = [max(", "squares = [min("),
            (
                "possibilities: what is bare is forgotten",
                "if any(multiplier == 0 for run",
                "if False and any(multiplier == 0 for run",
            ),
            ("possibilities: a run that cost nothing hides others", "for run in runs if any(run))", "for run in runs)"),
        ],
    ),
    (
        "data/own.py",
        "tests/data/test_schema.py",
        [("counts of raw records are no disclosure", "        + tuple(counted),", "        + (),")],
    ),
    (
        "privacy/accounting/tradeoff.py",
        "tests/privacy/test_tradeoff.py",
        [
            ("trade-off: a promise costs no epsilon", "np.exp(EPSILONS + epsilon)", "np.exp(EPSILONS)"),
            ("trade-off: a promise costs no delta", "_deltas(recipe) + delta, 1.0", "_deltas(recipe), 1.0"),
            ("trade-off: without noise nothing is found", "        return 1.0\n", "        return false_alarms\n"),
            ("trade-off: a promise is Gaussian at any delta", "not 0 < 10 * delta <= false_alarms", "not 0 < delta"),
            ("trade-off: half of a promise", "1 / mu_of(epsilon, delta)", "2 / mu_of(epsilon, delta)"),
            ("trade-off: steps are not counted", "math.fsum(count / multiplier**2", "math.fsum(1 / multiplier**2"),
            (
                "trade-off: sampling is not looked at",
                "if epsilon == delta == 0 and all(",
                "if epsilon == delta == 0 or all(",
            ),
            ("trade-off: only who comes counts", "np.max([upper_deltas", "np.min([upper_deltas"),
            (
                "trade-off: half of the false alarms",
                "slopes * false_alarms + deltas",
                "slopes * false_alarms / 2 + deltas",
            ),
        ],
    ),
    (
        "report/statement.py",
        "tests/report/test_statement.py tests/store/test_account.py tests/deploy/test_tables.py",
        [
            ("a deployment on the default data", "if simulated else summary.trial_of", "if True else summary.trial_of"),
            (
                "a statement: what left bare is covered",
                "covered = not any(row.reason for row in mine)",
                "covered = True",
            ),
            (
                "a statement: all observers are outsiders",
                "summary.epsilon[view], summary",
                'summary.epsilon["outsider"], summary',
            ),
            (
                "a statement: all attackers are outsiders",
                "summary.attack_accuracy[view], *",
                'summary.attack_accuracy["outsider"], *',
            ),
            (
                "a statement: all observers find what outsiders find",
                "hits_of(spent, view, false_alarms)",
                'hits_of(spent, "outsider", false_alarms)',
            ),
        ],
    ),
    (
        "report/run_facts.py",
        "tests/report/test_statement.py",
        [
            ("a statement: everybody's noise is counted", "    if shares == 1:", "    if False:"),
            ("a statement: what is read is declared", 'one.source == "read from the records" and', "False and"),
            ("a statement: bare models are for anybody", 'if summary.epsilon["outsider"] is None:', "if False:"),
        ],
    ),
    (
        "report/site_statement.py",
        "tests/deploy/test_site_statement.py",
        [
            (
                "a site's statement: records pay once",
                "2 * sites if unit is Unit.PERSON else 2",
                "2 * sites if unit is Unit.PERSON else 1",
            ),
            ("a site's statement: reserved epsilons are free", '"promised": list(promise)}', '"promised": [0.0, 0.0]}'),
            ("a site's statement: restored ledgers are believed", "math.inf if unknown else spent", "spent"),
            (
                "a site's statement: all observers are the outsider",
                "_observe(view, spent[view]",
                "_observe(view, spent[VIEWS[0]]",
            ),
        ],
    ),
    (
        "deploy/site/verify.py",
        "tests/deploy/test_site_statement.py",
        [
            ("verified: what left for no run", "if run not in known:", "if False:"),
            ("verified: what was never reserved", "    if not reserved:", "    if False:"),
            ("verified: more than was reserved", "if paid[view] > most * ROUNDING + 1e-6:", "if False:"),
            (
                "verified: more than the rules allow",
                "if not spent[policy.view].fits(",
                "if False and not spent[policy.view].fits(",
            ),
            ("verified: other rules", "in (None, policy.digest(secret)):", "is not False:"),
            ("verified: another witness", "        return [str(error)]", "        return []"),
        ],
    ),
    (
        "experiment/budgeting.py",
        "tests/deploy/test_agreement.py tests/deploy/test_terms.py tests/privacy/test_plan.py",
        [
            ("published noise is not looked up", 'if method.variant == "paper":', "if False:"),
            ("sites' shares are ignored", ", experiment.colluders, calibration.shares)", ", experiment.colluders)"),
            (
                "whole numbers are calibrated as floats",
                "multiplier = calibration.multiplier(epsilon, delta)",
                "multiplier = multiplier_for(epsilon, delta, calibration.turns)",
            ),
            ("colluders that leave no honest noise", "if experiment.colluders >= minimum:", "if False:"),
            ("a cohort larger than a round", "if minimum > schedule.cohort:", "if False:"),
        ],
    ),
    (
        "data/people.py",
        "tests/data/test_people.py tests/report/test_neighbours.py",
        [
            ("people: strangers are the same", "ALIKE = 0.6", "ALIKE = 0.45"),
            ("people: only equal sketches are the same", "ALIKE = 0.6", "ALIKE = 1.0"),
            ("equal rows at one client count as several", "if len(set(who)) > 1)", "if len(who) > 1)"),
            (
                "rows are equal if their first columns are",
                "holders.setdefault(flat[place].tobytes()",
                "holders.setdefault(flat[place, columns].tobytes()",
            ),
            ("equal rows with other labels count", "+ y[place].tobytes()", '+ b""'),
        ],
    ),
    (
        "privacy/ledger.py",
        "tests/privacy/test_ledger.py tests/experiment/test_stopping.py tests/experiment/test_own_randomness.py",
        [
            ("whole plan: one round is all", "turns if number < rounds else 1", "1"),
            ("whole plan: what is planned is forgotten", "np.square(mu) if mu else 0.0", "0.0"),
            (
                "whole plan: the cheapest round is repeated",
                "np.maximum(spent, before[0] +",
                "np.minimum(spent, before[0] +",
            ),
            ("whole plan: what is asked last is forgotten", "before[0] + times * part.spent", "times * part.spent"),
            (
                "whole plan: whole numbers of one round",
                "np.maximum(whole._entries[kind], most)",
                "whole._entries[kind]",
            ),
            (
                "whole plan: planned recipes are forgotten",
                "max(history.get((rate, met), 0), count + more.get((rate, met), 0))",
                "history.get((rate, met), 0)",
            ),
            ("whole plan: later attempts are forgotten", "count + more.get((rate, met), 0)", "count"),
            (
                "whole plan: records pay for one turn",
                "count * turns / taken[pool, client]",
                "count / taken[pool, client]",
            ),
            ("own code: attempts count as turns", "if not row.exposed and not before:", "if not row.exposed:"),
            (
                "own code: one attempt for all",
                "self._attempts[question] = max(self.attempts(question), before + 1)",
                "pass",
            ),
            ("own code: attempts have one number", "return question + (before << ATTEMPT_SHIFT)", "return question"),
            ("nothing is charged", "self.spent[:, clients] += costs", "self.spent[:, clients] += 0.0"),
            ("what whole clients pay is passed over", "if costs.any():", "if False:"),
            ("clients cost nothing", "if not sensitivity.any():", "if True:"),
            ("one client stands for all", "found.setdefault(key, client)", "found.setdefault((), client)"),
            (
                "clients differ in what records went through, but are taken for alike",
                "tuple(pool.get(client, {}).items())",
                "()",
            ),
            (
                "clients differ in what they paid, but are taken for alike",
                "map(tuple, spent[:, paying].T.tolist())",
                "[()] * len(paying)",
            ),
            (
                "only the first release is charged",
                "for name, release in releases.items()",
                "for name, release in list(releases.items())[:1]",
            ),
            (
                "the mean client instead of the worst",
                "[VIEWS.index(view)].max(initial=0.0)",
                "[VIEWS.index(view)].mean()",
            ),
            (
                "reading single messages is free",
                "charge = Charge(np.ones(1), 1 / np.sqrt(unpaid.T))",
                "charge = Charge(np.zeros(1), 1 + 0 * unpaid.T)",
            ),
            (
                "reading single messages is free once something has left bare",
                "unpaid > ROUNDING * self._covered[-1, clients]",
                "unpaid > ROUNDING * self.spent[-1, clients]",
            ),
            ("what a client paid is not added to its records'", "mu = 2 * math.sqrt(spent)", "mu = 0.0"),
            ("a record moves its client's share by its bound only", "mu = 2 * math.sqrt", "mu = math.sqrt"),
            (
                "noise for records protects clients",
                "math.inf if self._histories else math.sqrt(float(row",
                "math.sqrt(float(row",
            ),
            ("noise from a known seed counts", "if allowance.known else joint", "if False else joint"),
            ("a promise holds at any delta", "or left < 0 or", "or"),
            ("a promise is a Gaussian's where records are replaced", "if not at or any(self.recipes()):", "if True:"),
            ("rows are not chained", "return hashlib.sha256(previous +", "return hashlib.sha256("),
            (
                "several rows of promises",
                "if self._promises() or self._entries or self.unit",
                "if self._entries or self.unit",
            ),
            (
                "several rows of whole numbers",
                "if self._promises() or self._entries or self.unit",
                "if self._promises() or self.unit",
            ),
            (
                "replaced records: the whole client twice",
                "multiplier = 2 * multiplier if replace else multiplier",
                "multiplier = multiplier",
            ),
            (
                "replaced records at the price of emptied ones",
                "cost = replaced_epsilon if replace else record_epsilon",
                "cost = record_epsilon",
            ),
            (
                "several rows of the client that paid least",
                "return {str(rows): max((rows_epsilon",
                "return {str(rows): min((rows_epsilon",
            ),
            (
                "what tells of everything exposes one release",
                "for name in list(self._in_sums)]",
                "for name in list(self._in_sums)[:1]]",
            ),
            ("whole numbers of the last question alone", "sent[clients] += row.entries", "sent[clients] = row.entries"),
        ],
    ),
    (
        "privacy/accounting/gaussian.py",
        "tests/privacy/test_accountant.py",
        [
            ("epsilon too small by a tenth", "return float(root)", "return 0.9 * float(root)"),
            ("no delta is like any", "if math.isinf(mu) or delta <= 0:", "if math.isinf(mu):"),
        ],
    ),
    (
        "privacy/accounting/gaussian.py",
        "tests/experiment/test_moments.py",
        [
            ("moments: a share of mu", "math.sqrt(share) * mu_of", "share * mu_of"),
            ("moments: what is left of mu", "max(0.0, whole**2 - used**2)", "max(0.0, whole - used) ** 2"),
        ],
    ),
    (
        "experiment/private_scaling.py",
        "tests/experiment/test_moments.py",
        [
            ("moments: records longer than one", "math.sqrt(1.25 * numbers)", "math.sqrt(numbers)"),
            ("moments: twice the noise", "RecordSum(1.0, 1.0,", "RecordSum(2.0, 1.0,"),
            ("moments: less noise than all", "RecordSum(1.0, 1.0,", "RecordSum(1.0, 0.3,"),
            ("moments: any value put in", "torch.stack(parts, dim=1).clamp(-1, 1)", "torch.stack(parts, dim=1)"),
            ("moments: squares are not centred", "numbers.square() - 0.5", "numbers.square()"),
            ("moments: a share costs all", '{"epsilon": part, "budget_over_runs"', '{"budget_over_runs"'),
            ("moments: no limit over runs", '{"epsilon": part, "budget_over_runs": epsilon}', '{"epsilon": part}'),
            ("moments: earlier runs are forgotten", "remaining(epsilon, used,", "remaining(epsilon, part,"),
            ("moments: divided by one client's records", "of_records.trained.sum()", "of_records.trained.max()"),
            ("moments: what sampled runs leave is told", 'not total["sampled"]', "True"),
            ("moments: drowned figures are released", "if not noise < TOO_NOISY:", "if False:"),
        ],
    ),
    (
        "privacy/budget/client_level_plan.py",
        "tests/privacy/test_plan.py",
        [
            ("a vacuous delta passes", "if delta >= 1 / units:", "if False:"),
        ],
    ),
    (
        "federation/message.py",
        "tests/privacy/test_gate.py tests/test_own_methods.py tests/methods/test_pac_dp.py",
        [
            (
                "clients share what they are told",
                "return value.detach().to(device, copy=True)",
                "return value.detach().to(device)",
            ),
            (
                "everybody gets everybody's row",
                "return self.values[torch.as_tensor(list(clients), dtype=torch.int64)]",
                "return self.values[:1].expand(len(clients), *self.values.shape[1:])",
            ),
        ],
    ),
    (
        "method.py",
        "tests/test_no_privacy.py tests/test_contract.py",
        [
            ("nothing is protected", 'if self.privacy == "dp" else', 'if self.privacy == "never" else'),
            ("everything is protected", 'if self.privacy == "dp" else', "if True else"),
        ],
    ),
    (
        "federation/client.py",
        "tests/federation/test_failing_steps.py tests/federation/test_purity.py tests/deploy/test_failing_sites.py "
        "tests/experiment/test_places.py tests/test_own_methods.py tests/experiment/test_own_randomness.py "
        "tests/test_contract.py",
        [
            ("own code: a client's draws are not told", "done.start, self._drawn(question, passed))", "done.start)"),
            ("own code: answers made of gradients are not told", "if found and self.protects_records:", "if False:"),
            ("a step writes public states", "if stolen:", "if False:"),
            ("a step keeps things by its data", "if self._keeps.setdefault(step, keeps) != keeps:", "if False:"),
            ("public states that nobody learned", "if sorted(learned[-1]) != self.public_names:", "if False:"),
            (
                "bounds follow what a step does to its memory",
                "{name: me[name].to(self.device, copy=True) for name in self.public_names}",
                "{name: me[name] for name in self.public_names}",
            ),
            (
                "outlet: clients share the method with the script",
                "copy.deepcopy(method), learner.copied()",
                "method, learner.copied()",
            ),
            (
                "outlet: clients share the network with the server",
                "copy.deepcopy(method), learner.copied()",
                "copy.deepcopy(method), learner",
            ),
            (
                "outlet: what failed on records may be caught",
                "            if data.failure is not None:",
                "            if False:",
            ),
            (
                "outlet: steps may leave things lying about",
                '        with self.unchanged(f"step {question.step}"):',
                "        if True:",
            ),
            (
                "outlet: a null contribution has no noise",
                "return Outcome(self.gate.passes(releases, sent, question.number, public), {}, None)",
                "return Outcome(replace(self.gate.passes(releases, sent, question.number, public), values={"
                "name: torch.zeros_like(rows, dtype=torch.int64) for name, rows in sent.items()}), {}, None)",
            ),
            (
                "outlet: a failing step is run on the records again",
                "            nobody._kind = BlankRecords",
                "            nobody._kind = PrivateRecords",
            ),
            (
                "validation records follow labels",
                "self.gate.source, client)",
                "self.gate.source, client + int(y.sum()))",
            ),
            (
                "other records are set aside in each round",
                "self.gate.source, client)",
                "self.gate.source, client + 1000 * question.round)",
            ),
        ],
    ),
    (
        "federation/transport.py",
        "tests/federation/test_failing_steps.py",
        [
            (
                "outlet: a script goes on after a failure",
                "            self.failure = error\n            raise",
                "            raise",
            ),
            (
                "outlet: only errors that scripts should catch are fatal",
                "        except BaseException as error:\n            self.failure",
                "        except UserWarning as error:\n            self.failure",
            ),
        ],
    ),
    (
        "simulator/engine.py",
        "tests/federation/test_purity.py",
        [
            (
                "outlet: evaluation may leave things lying about",
                'if work.evaluate:\n                with self.clients.unchanged("evaluation"):',
                "if work.evaluate:\n                if True:",
            ),
            (
                "outlet: evaluation of one model may leave things lying about",
                'with self.clients.unchanged("evaluation"):\n                return',
                "if True:\n                return",
            ),
            (
                "outlet: evaluation of own models may leave things lying about",
                'with self.clients.unchanged("evaluation"):\n                found',
                "if True:\n                found",
            ),
            (
                "outlet: metrics may leave things lying about",
                'with self.clients.unchanged("evaluation"):\n                said',
                "if True:\n                said",
            ),
        ],
    ),
    (
        "federation/blending.py",
        "tests/federation/test_purity.py",
        [("outlet: blending may leave things lying about", 'with self._clients.unchanged("blending"):', "if True:")],
    ),
    (
        "federation/purity.py",
        "tests/federation/test_purity.py",
        [("outlet: a network goes on with what it has seen", "if self._refusal is not None:", "if False:")],
    ),
    (
        "deploy/site/session.py",
        "tests/deploy/test_failing_sites.py",
        [
            (
                "outlet: a site's metrics may leave things lying about",
                'with self.clients.unchanged("evaluation"):\n            said',
                "if True:\n            said",
            ),
            (
                "outlet: a site's evaluation may leave things lying about",
                'with self.clients.unchanged("evaluation"):\n            found',
                "if True:\n            found",
            ),
        ],
    ),
    (
        "simulator/local_transport.py",
        "tests/federation/test_failing_steps.py tests/simulator/test_workers.py",
        [
            ("outlet: failures are not written down", '            self._failed(f"', '            id(f"'),
            ("outlet: own steps may blame the machine", "MACHINE if not own else ()", "MACHINE"),
            ("outlet: failures of the machine are the clients'", "MACHINE if not own else ()", "()"),
            ("outlet: a step may pass for Ctrl-C", "and (signals or not self._own)", ""),
            ("outlet: Ctrl-C is a step's failure", "and (signals or not self._own)", "and not self._own"),
            ("outlet: a step ends the program", " or not isinstance(error, Exception):", ":"),
            (
                "outlet: evaluation fails unseen",
                'with self._note_failure("Evaluation", own=self._own_network):\n            return self._workers.m',
                "if True:\n            return self._workers.m",
            ),
        ],
    ),
    (
        "simulator/workers.py",
        "tests/federation/test_failing_steps.py",
        [
            (
                "outlet: what fails in one process alone is nobody's fault",
                "                if machine:\n",
                "                if True:\n",
            ),
        ],
    ),
    (
        "federation/execution.py",
        "tests/federation/test_purity.py",
        [
            (
                "outlet: a step finds the last client's model",
                "            clients.learner.unbind(clients.device)\n            message",
                "            message",
            ),
        ],
    ),
    (
        "federation/purity.py",
        "tests/federation/test_purity.py",
        [
            (
                "outlet: what a step writes on itself is not looked at",
                "vars(self._method).items() if name not in self._lazy}",
                "()}",
            ),
            (
                "outlet: modules are not looked at",
                "        for module in self.modules:\n            found",
                "        for module in ():\n            found",
            ),
            (
                "outlet: classes are not looked at",
                '            found |= {f"{kind.__qualname__}.',
                '            _ = {f"{kind.__qualname__}.',
            ),
            (
                "outlet: what functions carry is not looked at",
                "self._each(_values_held(value), depth)",
                "self._each((), depth)",
            ),
            (
                "outlet: tables are not looked into",
                "found = len(value), self._named(value, depth)",
                "found = len(value)",
            ),
            (
                "outlet: arrays are not looked into",
                "value.tobytes() if value.nbytes <= SMALL",
                "None if value.nbytes <= SMALL",
            ),
            (
                "outlet: lists are not looked into",
                "found = len(value), self._each(value, depth)",
                "found = len(value)",
            ),
            ("outlet: arrays of objects are not looked into", "self._each(value.flat, depth)", "None"),
            ("outlet: views are not looked into", "(value, (np.ndarray, memoryview))", "(value, np.ndarray)"),
            ("outlet: what tensors hold is not looked at", "value._version, held, grad", "value._version, grad"),
            ("outlet: what torch counts is not looked at", "0 if value.is_inference() else value._version", "0"),
            ("outlet: gradients may be left", "self.at(value.grad, depth) if value.is_leaf", "None if value.is_leaf"),
            (
                "outlet: layers are not looked into",
                "parts = [(name, self.at(part, depth + 1)) for name, part in value._modules.items()]",
                "parts = None",
            ),
            ("outlet: attributes of layers are not looked at", "value.training, self._named(own, depth)", "None"),
            (
                "outlet: a network's depth counts",
                "self.at(part, depth + 1)",
                "self.at(part, depth)",
            ),
            (
                "outlet: other classes are not looked at",
                "self._named(dict(_chosen_by_user(vars(value))), depth)",
                "None",
            ),
            ("outlet: caches are not looked at", "sorted(gc.get_referents(value), key=id)", "()"),
            ("outlet: what caches hold is not looked at", "0, self._each(held, depth)", "0,"),
            ("outlet: parts of functions are not looked at", "(value.func, value.args, value.keywords)", "(0,)"),
            (
                "outlet: owners of methods are not looked at",
                '(value.__self__, getattr(value, "__func__", None))',
                "(0,)",
            ),
            ("outlet: generators are not looked at", "(frame.f_lasti, self._named(frame.f_locals, depth))", "()"),
            ("outlet: torch's generators are not looked at", "value.get_state().cpu().numpy().tobytes()", "0"),
            ("outlet: counters are not looked at", "            found = repr(value)", "            found = 1"),
            ("outlet: other packages' objects are not looked at", "pickled = _pickle(value)", "return None"),
            ("outlet: objects are not looked at", "for name, one in attributes(value).items()", "for name, one in ()"),
            (
                "outlet: the network is not looked at",
                "for name, value in vars(self._learner).items() if",
                "for name, value in () if",
            ),
            ("outlet: the network's module is not looked at", "        self._classes += written\n", ""),
            (
                "outlet: objects on layers are not looked for",
                'return [getattr(called, "__module__", None) or type(called).__module__]',
                'return [getattr(called, "__qualname__", "") and called.__module__]',
            ),
            (
                "outlet: modules of hooks are not looked at",
                "for kind in classes] + _modules_of_hooks(network))",
                "for kind in classes])",
            ),
        ],
    ),
    (
        "auditing/worlds.py",
        "tests/auditing/test_worlds.py "
        "tests/auditing/test_cheats.py::test_what_is_published_of_sizes_and_rare_labels_is_noticed",
        [
            ("outlet: clients keep their numbers of records", '    "other numbers of records": _other_numbers,\n', ""),
            ("outlet: no client has a single record", '    "clients of a single record": _single_record,\n', ""),
            ("outlet: every label occurs", "data.task.shift(torch.zeros_like(data.train.y), -1)", "data.train.y"),
            ("outlet: no label is rare", "    y = torch.zeros_like(y)\n    y[int(data", "    y[int(data"),
            ("outlet: no record is extreme", "EXTREME_VALUE * torch.sign(x - x.mean())", "x"),
            ("outlet: no client has one label", '    "clients of one label each": _one_label,\n', ""),
        ],
    ),
    (
        "auditing/bounds.py",
        "tests/auditing/test_bounds.py",
        [
            ("rates as they came", "float(beta.isf(risk, errors + 1, trials - errors))", "errors / trials"),
            ("one risk for two rates", "risk = (1 - confidence) / 2", "risk = 1 - confidence"),
            ("half of delta", "2 * canaries * delta", "canaries * delta"),
            ("all guesses are right", "(1 - confidence) * right / canaries", "(1 - confidence) * guesses / canaries"),
            ("the mean without its error", "low = mu - float(", "low = mu - 0 * float("),
        ],
    ),
    (
        "auditing/findings.py",
        "tests/auditing/test_bounds.py tests/auditing/test_findings.py",
        [
            ("what chose the threshold counts", "cls(inside[first[0] :], outside[first[1] :]", "cls(inside, outside"),
            ("another run's claim is attacked", "self.claimed = max(self.claimed, attack.paid)", "pass"),
            ("what refutes is not named", "(self._refutes(one), one.bound)", "one.bound"),
        ],
    ),
    (
        "auditing/client_canaries.py",
        "tests/auditing/test_false_claims.py",
        [
            ("a canary within its bound", "EXCESS_LENGTH = 3.0", "EXCESS_LENGTH = 1.0"),
            ("a canary in one tensor", "edges |= set(", "edges.copy().update("),
            ("a canary whose sign stays", "-1.0 if count % 2 else 1.0", "1.0"),
            ("no release is attacked alone", "if len(names) > 1 else {}", "if False else {}"),
            ("everybody sees what the server sees", "if sees is None:", 'sees = "rows"\n            if sees is None:'),
        ],
    ),
    (
        "auditing/conformance.py",
        "tests/auditing/test_false_claims.py",
        [
            ("too little noise is overlooked", "if too_small(total, count) < RISK:", "if False:"),
            ("noise may be missing somewhere", "where = _missing_noise(passages)", 'where = ""'),
            ("noise may be missing on an entry", "counted += np.stack([squares, leaves])", "counted += 0"),
            ("long draws are not compared", "if worst > min(limit, 0.95)", "if False"),
            (
                "entries of a draw are not compared",
                "_correlated_draws(stacked) or _repeated_entries(stacked)",
                "_correlated_draws(stacked)",
            ),
            ("draws of two releases are not compared", "    yield from _among_kinds(runs)", "    yield from ()"),
        ],
    ),
    (
        "auditing/conformance.py",
        "tests/auditing/test_false_claims.py tests/auditing/test_cheats.py",
        [
            ("coins are not looked at", "    if not tosses:", "    if tosses:"),
            ("a missing row is overlooked", "        if missing:", "        if False:"),
            (
                "a row pays for any number of messages",
                "count - times[number, name])",
                "count * (not times[number, name]))",
            ),
            ("gradients are not counted", "if count > counted.get(key, (0.0, 0))[1]}", "if False}"),
            ("prices are not compared", "if passage.price > price * (1 + 1e-6):", "if False:"),
            ("bytes are not looked at", "            if needed > each:", "            if False:"),
            ("nothing is rehearsed", "replays.replay(run).items()", "{}.items()"),
        ],
    ),
    (
        "auditing/replay.py",
        "tests/auditing/test_cheats.py tests/auditing/test_false_claims.py",
        [
            (
                "the same records again",
                "prepared if change is None else replace(prepared, data=change(prepared.data))",
                "prepared",
            ),
            (
                "whom the script asks is not compared",
                "!= (name, [int(one) for one in who])",
                "!= (name, list(asked.question.clients))",
            ),
            ("messages are not compared", "if digest(asked.question.message) != digest(message):", "if False:"),
            ("the end is not compared", "if kept[0] != before[0] or any(", "if False and any("),
            ("a script may end earlier", "        if self._left:\n", "        if False:\n"),
            ("noise is not compared", "not (same_bits(noise, passage.deviations) and bound == passage.bound)", "False"),
            ("what has no noise is not compared", "and not same_bits(rows.cpu(), before)", "and False"),
            ("lengths are not compared", "if rows.shape != before.shape or rows.dtype != before.dtype:", "if False:"),
            ("public states are not compared", "if any(not same_bits(states[name], rows)", "if any(False"),
            ("gradients that are not taken are overlooked", "left = self._known.keys() - self.taken", "left = ()"),
            ("rehearsed where the run was recorded", 'if hasattr(os, "fork") else ()', "if False else ()"),
            (
                "outlet: a rehearsal goes on after a failure",
                "            self._ended = error\n            raise",
                "            raise",
            ),
            (
                "outlet: a rehearsal's end does not ask whether it failed",
                'or with something else."""\n        self._go_on()',
                'or with something else."""',
            ),
        ],
    ),
    (
        "auditing/one_run.py",
        "tests/auditing/test_one_run.py",
        [
            ("always the first of several models", "place = int((last - model).norm(dim=1).argmin())", "place = 0"),
            ("canaries join every round", "if self.client not in question.clients:", "if False:"),
            ("canaries take anybody's turns", "client_canaries.target_of(first), number", "0, number"),
            ("canaries tell of each other", "if parts > 1 and size <= MAX_SOLVED", "if False"),
            (
                "canaries know their coins",
                "torch.from_numpy(self.coins.astype(np.float32)) @ bounded",
                "0 * bounded[0]",
            ),
        ],
    ),
    (
        "auditing/recorder.py",
        "tests/auditing/test_cheats.py",
        [
            (
                "the price of the first block",
                'price += (bound / deviation) ** 2 if deviation else float("inf")',
                "price = price or (bound / deviation) ** 2",
            )
        ],
    ),
    (
        "auditing/record_canaries.py",
        "tests/auditing/test_mixing.py tests/auditing/test_false_claims.py",
        [
            (
                "a canary record within its threshold",
                "max(CANARY_FEATURE, EXCESS_LENGTH * 2 * float(clip))",
                "float(clip) / 2",
            ),
            ("gradients that passed are not counted", "[kind] += 1", "[kind] = 1"),
            (
                "apart: a canary in the first place only",
                "for place in {0, len(units) // 2, len(units) - 1}",
                "for place in {0}",
            ),
            ("apart: canaries of one size", "12, (1.0, 10.0, 100.0)", "12, (1.0,)"),
            ("apart: canaries only in evaluation", "for training in (True, False):", "for training in (False,):"),
        ],
    ),
    (
        "auditing/recorded_run.py",
        "tests/auditing/test_false_claims.py",
        [("an audited run ends where it was stopped", "replace(ended_at, over=False)", "ended_at")],
    ),
    (
        "federation/transcript.py",
        "tests/auditing/test_false_claims.py",
        [("single messages that are read reach nobody", ' or (release, "rows") in self.read', "")],
    ),
    (
        "federation/server.py",
        "tests/test_own_methods.py tests/federation/test_server.py tests/experiment/test_own_randomness.py",
        [
            (
                "own code: the run state is not told of answers",
                "self._run_state.answered(question.number, answer.drawn)",
                "pass",
            ),
            ("own code: all attempts have one number", "self._run_state.ledger.attempts(self.count))", "0)"),
            ("means of records as often as anybody likes", "if release.record_level or release", "if release"),
            ("gradients under two names", "taken = same_turns(self.steps, step, name)", "taken = {name}"),
            ("a smaller cohort is used", "len(clients) < noise.minimum_cohort", "False"),
            ("the ledger is not asked", "self._run_state.charge(rows)", "pass"),
            ("a client may be asked twice", "if len(set(clients)) < len(clients):", "if False:"),
            ("states that tell of single messages are free", "if self._state_names and any(", "if False and any("),
            ("clients are asked beyond their budget", "if (times >= most).any():", "if False:"),
            ("one number for all questions", "self.count += 1", "self.count += 0"),
            ("noise could not cover it and is not asked", "self._gate.check(releases, public)", "pass"),
        ],
    ),
    (
        "federation/replies.py",
        "tests/test_own_methods.py",
        [
            (
                "single messages are read for nothing",
                "self._run_state.charge(kind.expose(ledger, self._rows[release], self._public.clients))",
                "pass",
            ),
            ("a mean of masks exposes nothing", "if not self._releases[release].summed:", "if False:"),
            (
                "a state exposes the first client alone",
                "self._rows[release], self._public.clients))",
                "self._rows[release], self._public.clients[:1]))",
            ),
        ],
    ),
    (
        "deploy/site/data.py",
        "tests/experiment/test_places.py",
        [
            (
                "a site's test records follow labels",
                "rules.test_fraction, secret)",
                "rules.test_fraction, secret + bytes(y.numpy()))",
            ),
        ],
    ),
    (
        "auditing/side_channels.py",
        "tests/auditing/test_one_run.py",
        [
            (
                "without its canary a client has a record less",
                "begins = np.where(coins, 0, records)",
                "begins = np.where(coins, 0, 1)",
            ),
        ],
    ),
    (
        "planning/plan.py",
        "tests/privacy/test_plan.py tests/cli/test_screen.py",
        [
            (
                "a plan forgets that states expose",
                "exposed=any(release.exposes_history() for release in all_releases(costs.declared))",
                "exposed=False",
            ),
            (
                "a plan tells the cheapest client's epsilon",
                "epsilon={view: max(worst[view]) for view in VIEWS}",
                "epsilon={view: min(worst[view]) for view in VIEWS}",
            ),
        ],
    ),
    (
        "deploy/protocol/integer_rows.py",
        "tests/deploy/test_masking.py",
        [
            ("sites: sums of unequal noise", "if cover is None or len(cover.deviations) > 1:", "if cover is None:"),
            ("sites: sums of any length", "> contributions * math.sqrt(limit) + noise:", "> math.inf:"),
        ],
    ),
    (
        "deploy/protocol/roster.py",
        "tests/deploy/test_rules.py",
        [
            ("somebody stands twice in a roster", "if len(set(values)) < len(values):", "if False:"),
        ],
    ),
    (
        "deploy/protocol/keys.py",
        "tests/deploy/test_session.py",
        [
            ("a signature holds for any purpose", '(b"sordino 1", purpose.encode(), *parts)', '(b"sordino 1", *parts)'),
            (
                "signed parts run into each other",
                'len(part).to_bytes(8, "big") + part for part in whole',
                "part for part in whole",
            ),
            ("any signature holds", "        return False\n    return True", "        return True\n    return True"),
        ],
    ),
    (
        "data/selection.py",
        "tests/data/test_public.py tests/experiment/test_places.py",
        [
            ("owners' records are public", "if held_out and dataset.owner is not None:", "if False:"),
            (
                "public records that are a client's are not told",
                "*dataset.disclosed, _disclose_shared(shared, len(other.y))",
                "*dataset.disclosed,",
            ),
            (
                "the records that take part follow labels",
                "random_stream(seed, 21)",
                "random_stream(int(dataset.y.sum()), 21)",
            ),
            ("public records follow labels", "random_stream(seed, 20)", "random_stream(int(dataset.y.sum()), 20)"),
        ],
    ),
    (
        "methods/fedper_record.py",
        "tests/methods/test_personal_rivals.py",
        [
            ("personal layers leave", "(model - start) * shared", "model - start"),
            ("personal layers are the server's", ', me["model"])', ', message["global"])'),
        ],
    ),
    (
        "methods/fedprox_record.py",
        "tests/methods/test_personal_rivals.py",
        [
            ("clients are pushed away from the global model", "pull_to(start, self.mu)", "pull_to(start, -self.mu)"),
            ("clients are pulled to zero", "pull_to(start, self.mu)", "pull_to(0 * start, self.mu)"),
        ],
    ),
    (
        "methods/nbafl_record.py",
        "tests/methods/test_nbafl_record.py",
        [
            ("nbafl-record: clients are pushed away", "pull_to(start, self.mu)", "pull_to(start, -self.mu)"),
            ("nbafl-record: weights leave the ball", "(self.ball / model.norm()).clamp(max=1)", "1.0"),
            ("nbafl-record: all weights lie on the ball", ".clamp(max=1)", ""),
            ("nbafl-record: half of the published noise", "return 2 * math.sqrt(2 *", "return math.sqrt(2 *"),
            ("nbafl-record: the published noise of one round", "* rounds / epsilon", "/ epsilon"),
        ],
    ),
    (
        "methods/ditto_record.py",
        "tests/methods/test_personal_rivals.py",
        [
            (
                "personal models are pushed away from the global one",
                "pull_to(received, self.strength)",
                "pull_to(received, -self.strength)",
            )
        ],
    ),
    (
        "methods/mr_mtl_record.py",
        "tests/methods/test_personal_rivals.py",
        [
            ("what is sent is not the way from the mean", "model - mean", "model - start"),
            ("the mean draws at strength zero", "self.strength, self.penalty", "self.strength + 1, self.penalty"),
        ],
    ),
    (
        "methods/dp_ifca.py",
        "tests/methods/test_clustered.py",
        [("models move by a k-th of what is due", "self.clusters * got.mean", "got.mean")],
    ),
    (
        "methods/ifca.py",
        "tests/methods/test_clustered.py",
        [
            ("clients move models that they did not choose", "chosen == number", "chosen >= number"),
            ("choices of those who are absent", "torch.as_tensor(list(got.who))", "torch.arange(len(chosen))"),
        ],
    ),
    (
        "methods/cfl.py",
        "tests/methods/test_clustered.py",
        [("clusters are parted that nobody pulls apart", "longest > self.pulling * largest", "True")],
    ),
    (
        "methods/dp_scaffold.py",
        "tests/methods/test_scaffold.py",
        [("variates of those who take part alone", " * (len(got.who) / fed.schedule.clients)", "")],
    ),
    (
        "methods/fedaddp.py",
        "tests/methods/test_client_level.py",
        [
            ("personal parameters are not held", "self.lambda1 / 2", "0.0"),
            ("the shared update flees its bound", "self.lambda2 / 2", "-self.lambda2 / 2"),
            ("the published bound without beta", "self.beta * piece.norm()", "piece.norm()"),
        ],
    ),
    (
        "privacy/release/of_sums.py",
        "tests/privacy/test_sums.py",
        [
            (
                "sums: thresholds do not say normalised",
                "Thresholds(found, normalised=self.normalised)",
                "Thresholds(found)",
            ),
            (
                "sums: rounded to float32 before noise",
                "return Release.unbounded(self, rows, public)",
                "return Release.unbounded(self, rows.float(), public)",
            ),
            (
                "sums: single messages may be read",
                'raise ReleaseError(\n            f"{self.describe()}: a method may read',
                'return []\n        raise ReleaseError(\n            f"{self.describe()}: a method may read',
            ),
            (
                "sums: noise on the mean is that of one message",
                "float(deviations) * math.sqrt(clients)",
                "float(deviations)",
            ),
            (
                "sums: half the noise of gradients",
                "Cover(self._shared(allowance).of_message(self.share) * bounds",
                "Cover(0.5 * self._shared(allowance).of_message(self.share) * bounds",
            ),
            (
                "sums: gradients have the whole budget beside others",
                "of_message(self.share) * bounds, bounds, [width]",
                "of_message(1.0) * bounds, bounds, [width]",
            ),
            (
                "sums: gradients are charged for less noise than there is",
                "multiplier = shared.of_message(self.share)",
                "multiplier = 2 * shared.of_message(self.share)",
            ),
            (
                "sums: everybody is charged the declared rate",
                "[(rate, multiplier, 1) for rate in plan",
                "[(self.rate / 2, multiplier, 1) for rate in plan",
            ),
            (
                "sums: clients are charged the rates of others",
                "plan.sampling[list(public.clients)].tolist()",
                "plan.sampling[: len(public.clients)].tolist()",
            ),
            (
                "sums: observers are charged alike",
                "Charge.of_records(self.pool, paid, entries, shared, len(public.clients), drawn=True)",
                "Charge.of_records(self.pool, paid, entries, drawn=True)",
            ),
            (
                "sums: gradients are charged apart from bits",
                "shared, len(public.clients), drawn=True)",
                "shared, len(public.clients))",
            ),
            (
                "sums: rounding of gradients is free",
                "entries = self.width(public) if allowance.whole else 0",
                "entries = 0",
            ),
            ("sums: thresholds of some clients", "if found.shape != (1, 1):", "if False:"),
            ("sums: any threshold", "        check_thresholds(bounds, self.describe())\n", ""),
            ("sums: any rate", "if not 0 < self.rate <= 1:", "if False:"),
            (
                "sums: any sealed value is a sum of gradients",
                'value, self.pool, "sum")',
                "value, self.pool, value.form)",
            ),
            ("sums: rows of any shape", "if rows.shape != (len(public.clients), self.width(public)):", "if False:"),
            (
                "sums: divided by the number of clients",
                "return len(public.clients) / max(allowance.of_records.expected_records(public.clients), 1e-9)",
                "return 1.0",
            ),
            ("sums: records may be drawn or not", '"batch" if self.drawn else "records")', "value.form)"),
            ("sums: a record of any width", "if rows.dim() != 2 or rows.shape[1] != self.width(public):", "if False:"),
            ("sums: any bound", "MIN_BOUND <= self.bound <= MAX_BOUND", "True"),
            ("sums: any share", "if not 0 < self.share <= 1:", "if False:"),
            ("sums: records are not limited", "shorten(kept, lengths(kept), limit).double()", "kept.double()"),
            (
                "sums: records are limited to twice the bound",
                "torch.full((), self.bound,",
                "torch.full((), 2 * self.bound,",
            ),
            (
                "sums: a record that is not finite passes",
                "kept = torch.where(finite.unsqueeze(1), rows, torch.zeros_like(rows))\n        limit",
                "kept = rows\n        limit",
            ),
            (
                "sums: records are added in float32",
                ".double().sum(dim=0, keepdim=True)",
                ".float().sum(dim=0, keepdim=True).double()",
            ),
            (
                "sums: half the noise of records",
                "Cover(self._multiplier(allowance) * bounds",
                "Cover(0.5 * self._multiplier(allowance) * bounds",
            ),
            ("sums: coins hide what is not drawn", "if self.drawn else 1.0 for client", "if True else 1.0 for client"),
            ("sums: bits are charged beside gradients", "asked, drawn=self.drawn)", "asked)"),
            ("sums: rounding for few entries", "max(self.width(public) or 0, sum(public.layers))", "1"),
            (
                "sums: what leaves once has the whole budget",
                "return alone / math.sqrt(self.share) / math",
                "return alone / math",
            ),
            ("sums: what leaves once is not shared out", " / math.sqrt(shared.guaranteed)", ""),
            (
                "sums: bits have the whole budget",
                "            return shared.of_message(self.share)\n",
                "            return shared.of_message(1.0)\n",
            ),
            ("sums: records over clients", "return len(clients) / max(records, 1e-9)", "return 1.0"),
        ],
    ),
    (
        "privacy/release/of_records.py",
        "tests/privacy/test_sums.py",
        [
            ("sealed: of any pool", "value.pool != pool or", "False or"),
            ("sealed: of any form", "or value.form != form:", "or False:"),
        ],
    ),
    (
        "privacy/release/declaring.py",
        "tests/privacy/test_sums.py",
        [
            ("sums: clients learn from thin messages", "if sums and states:", "if False:"),
            ("sums: several rates", "if len(rates) > 1:", "if False:"),
            ("sums: beside a client's own noise", "if sums and others:", "if False:"),
            ("sums: once and for all", "if once > 1 + 1e-9 or (rates and once >= 1):", "if False:"),
            ("sums: a batch that nobody draws", "if release.drawn and not gradients:", "if False:"),
            (
                "sums: values follow thin messages",
                "if one not in gradients or releases[one].drawn]",
                "if one not in gradients]",
            ),
        ],
    ),
    (
        "privacy/gate.py",
        "tests/privacy/test_sums.py",
        [
            ("batches: limits without noise", "clips, normalised = torch.full_like(clips, torch.inf), False", "pass"),
            (
                "batches: any threshold",
                '            check_thresholds(clips, "sums of gradients")\n',
                "            pass\n",
            ),
            (
                "batches: one rate for all",
                "float(plan.sampling[client]), clip, normalised)",
                "float(plan.sampling[0]), clip, normalised)",
            ),
            ("batches: tossed anew for each sum", "if self._coins is None:", "if True:"),
            (
                "batches: one batch for all questions",
                "self._source.coins(records, self.rate, *self._purpose, 0)",
                "self._source.coins(records, self.rate, self._purpose[1], 0)",
            ),
            (
                "batches: one batch for all clients",
                "self._source.coins(records, self.rate, *self._purpose, 0)",
                "self._source.coins(records, self.rate, self._purpose[0], 0)",
            ),
            ("batches: everybody is in them", "return self.rate == 1", "return True"),
            (
                "sealed: of any question",
                "            check_asked(value, name, (question, tuple(public.clients)))\n",
                "",
            ),
            (
                "sealed: of any client",
                "value.asked not in (None, asked):",
                "value.asked is not None and value.asked[0] != asked[0]:",
            ),
            ("sums: means over clients", "return mean if weight == 1 else mean * weight", "return mean"),
        ],
    ),
    (
        "privacy/gradients.py",
        "tests/privacy/test_sums.py",
        [
            (
                "sums: nothing says whose they are",
                "return Sealed(rows, pool, kind, form, self.__asked)",
                "return Sealed(rows, pool, kind, form)",
            ),
            (
                "sums: stacked ones do not say whose they are",
                '"sum of gradients", "sum", self.__asked)',
                '"sum of gradients", "sum")',
            ),
            (
                "sums: all records are in them",
                "for some in self._chosen(flat).split(",
                "for some in torch.arange(len(self.__units)).split(",
            ),
            (
                "sums: weights are forgotten",
                "total += self._clipped_sum(flat, some, weights)",
                "total += self._clipped_sum(flat, some)",
            ),
            (
                "sums: many records are added up in float32",
                "torch.zeros_like(flat, dtype=torch.float64)",
                "torch.zeros_like(flat)",
            ),
            (
                "sums: stacked ones are added up in float32",
                "Sealed(totals.double(),",
                "Sealed(totals.float().double(),",
            ),
            ("sums: any weights", "            check_weights(weights, len(self._task.groups))", "            pass"),
            (
                "sums: any weights of stacked clients",
                "            check_weights(weights, len(self.__task.groups), len(self.__sizes))",
                "            pass",
            ),
            (
                "sums: bits of all records",
                "chosen = self._chosen(flat)\n        with",
                "chosen = torch.arange(len(self.__units))\n        with",
            ),
            ("sums: bits from 0 to 1", "inside.float() - 0.5", "inside.float()"),
            (
                "sums: bits count as all records'",
                '"gradients within the threshold", "batch")',
                '"gradients within the threshold")',
            ),
            (
                "sums: gradients are not normalised",
                "return self.__batch.limit, self.__batch.normalised",
                "return self.__batch.limit, False",
            ),
            (
                "sums: weights of other records",
                "else of_records[begin : begin + len(norms)]",
                "else of_records[: len(norms)]",
            ),
            (
                "sums: weights where records are not finite",
                "return self._sum(flat, chosen, weights, spoiled=True)",
                "return self._sum(flat, chosen, spoiled=True)",
            ),
            (
                "sums: a record that overflows has dropout drawn anew",
                "        with _masks_of(flat.device, words):\n            return self._sum(",
                "        with _masks_of(flat.device, words[::-1]):\n            return self._sum(",
            ),
            (
                "masks: drawn of torch's stream as it is",
                "torch.default_generator.set_state(stream_state(words))",
                "pass",
            ),
            (
                "masks: torch's stream tells of the batch",
                "        _restore_random_state(device, outside)",
                "        pass",
            ),
            (
                "masks: bits of a batch have those of the ground",
                "with _masks_of(flat.device, self._batch_drawn.mask_words()):",
                "with contextlib.nullcontext():",
            ),
            (
                "sums: stacked clients share coins",
                "[batch.coins(count) for count",
                "[self.__batches[0].coins(count) for count",
            ),
            (
                "sums: padding counts in stacks",
                "if min(self.__sizes) == self.__x.shape[1] and all(",
                "if all(",
            ),
            (
                "sums: who is not drawn counts in stacks",
                "and all(batch.whole for batch in self.__batches)",
                "and any(batch.whole for batch in self.__batches)",
            ),
            ("sums: stacked gradients are not normalised", "batches[0].normalised", "False"),
            ("sums: stacked weights are forgotten", "weights.gather(1, _groups(self.__task, y))", "None"),
            (
                "sums: failed clients tell labels",
                "torch.full((1, self._task.counted), math.nan)",
                "torch.ones((1, self._task.counted))",
            ),
        ],
    ),
    (
        "privacy/clipping.py",
        "tests/privacy/test_sums.py",
        [
            (
                "sums: normalised gradients of any length",
                "factors = allowed.unsqueeze(-2) / (lengths + GAMMA)",
                "factors = 1 / (lengths + GAMMA)",
            ),
            ("sums: normalised gradients above the threshold", "/ (lengths + GAMMA)", "/ (lengths * 0.9)"),
            (
                "sums: weights multiply behind the threshold",
                "clipping_factors(norms.double() * weights.abs().unsqueeze(-1), clip, normalised)",
                "clipping_factors(norms.double(), clip, normalised)",
            ),
            ("sums: weights limit and do not multiply", "factors = factors * (weights if", "factors = factors * (1 if"),
            ("sums: negative weights pass", "weights.abs().unsqueeze(-1)", "weights.unsqueeze(-1)"),
            (
                "sums: factors that float32 cannot hold",
                "torch.where(factors.abs() >= MIN_FACTOR, factors, 0.0)",
                "factors",
            ),
            ("sums: infinite weights", "bool((weights.abs() <= MAX_WEIGHT).all())", "True"),
            ("sums: too few weights", "weights.shape != shape or", "False or"),
            ("sums: weights of weights", "weights.shape != shape or", "weights.shape[-1:] != (groups,) or"),
        ],
    ),
    (
        "privacy/ledger.py",
        "tests/privacy/test_sums.py",
        [
            (
                "sums: charged one by one",
                "for name, joint in join_drawn(charges).items():",
                "for name, joint in charges.items():",
            ),
            (
                "sums: bits are free",
                "np.sum([1 / np.square(one[:, 1]) for one in sampled], axis=0) ** -0.5",
                "np.max([one[:, 1] for one in sampled], axis=0)",
            ),
            (
                "sums: rounding of one of them",
                "entries = sum(charge.entries for charge in drawn.values())",
                "entries = drawn[first].entries",
            ),
            (
                "sums: the server meets the outsider's noise",
                "(histories[:, 1:2] * noise).tolist()",
                "(histories[:, 1:2] * noise[:, [0, 0, 0]]).tolist()",
            ),
            (
                "sums: everybody meets one message's noise",
                "(histories[:, 1:2] * noise).tolist()",
                "(histories[:, 1:2] * np.ones((1, 3))).tolist()",
            ),
            (
                "sums: owners meet the first one's noise",
                "(histories[:, 1:2] * noise).tolist()",
                "(histories[:1, 1:2] * np.ones_like(histories[:, 1:2]) * noise).tolist()",
            ),
            (
                "sums: every observer sees the outsider's recipe",
                "return tuple((rate, met[place], count) for rate, met, count in recipe)",
                "return tuple((rate, met[0], count) for rate, met, count in recipe)",
            ),
            (
                "sums: recipes of the outsider are stored",
                "found.add((*whole, *pool))",
                "found.add((*whole, *((rate, (met[0],) * 3, count) for rate, met, count in pool)))",
            ),
            (
                "sums: replaced records are emptied ones",
                "cost = replaced_epsilon if replace else record_epsilon",
                "cost = record_epsilon",
            ),
            (
                "sums: the gap of the outsider for all",
                "gaps = self._gaps(view)\n            if self.sites",
                'gaps = self._gaps("outsider")\n            if self.sites',
            ),
            (
                "sums: the gap of the outsider for each client",
                "gaps, promise = self._gaps(view, client)",
                'gaps, promise = self._gaps("outsider", client)',
            ),
        ],
    ),
    (
        "privacy/budget/allowance.py",
        "tests/privacy/test_sums.py",
        [
            ("sums: plans of the server", '"server" if self.shared is None else self.shared.protect_from', '"server"'),
            (
                "sums: noise of each client counts as shared",
                "if self.records is None or self.records.shared is None else",
                "if self.records is None else",
            ),
        ],
    ),
    (
        "privacy/budget/record_level_plan.py",
        "tests/privacy/test_sums.py",
        [
            ("sums: what leaves once is not planned for", "sum(count / z**2 for _, z, count in once)", "0.0"),
            (
                "sums: what leaves once is not planned for beside batches",
                "record_multiplier(largest, delta, needs.rate, turns, once, sites)",
                "record_multiplier(largest, delta, needs.rate, turns, (), sites)",
            ),
            ("sums: noise of one turn", "math.sqrt(turns / left)", "math.sqrt(1 / left)"),
            (
                "sums: noise for one sampled turn",
                "delta, needs.rate, turns, once, sites)\n            for",
                "delta, needs.rate, 1, once, sites)\n            for",
            ),
            (
                "sums: everybody has the largest budget's rate",
                "record_rate(budget, delta, multiplier, turns, needs.rate, once, sites)",
                "needs.rate",
            ),
            (
                "sums: rates without what leaves once",
                "record_rate(budget, delta, multiplier, turns, needs.rate, once, sites)",
                "record_rate(budget, delta, multiplier, turns, needs.rate, (), sites)",
            ),
            (
                "sums: counts have the largest budget",
                "alone = sites / mu_of(least, delta)",
                "alone = sites / mu_of(largest, delta)",
            ),
            ("sums: what leaves once has no noise", "alone if needs.sum_share else 0.0", "0.0"),
            (
                "sums: steps follow batches",
                "steps = np.full(len(trained), int(needs.rate is not None))",
                "steps = np.full(len(trained), 2)",
            ),
            (
                "sums: everything feasible as with noise at each site",
                "1 if self.shared is None else self.shared.guaranteed",
                "1",
            ),
            (
                "sums: expected records without coins",
                "(self.sampling[who] * self.trained[who]).sum()",
                "self.trained[who].sum()",
            ),
            (
                "sums: shares of one sum for all",
                "sum_share=self.sum_share + other.sum_share",
                "sum_share=max(self.sum_share, other.sum_share)",
            ),
        ],
    ),
    (
        "store/spending.py",
        "tests/privacy/test_sums.py tests/methods/test_dp_fedsgd.py",
        [
            (
                "sums: runs cost the server what they cost the outsider",
                "return seen_by(view, _read_recipe(stored))",
                'return seen_by("outsider", _read_recipe(stored))',
            ),
            ("sums: stored for the outsider", "*(met[:1] if len(set(met)) == 1 else met), count]", "*met[:1], count]"),
            ("sums: a plan of one message", "[client] * costs.schedule.cohort", "[client]"),
            ("sums: a plan of one turn", "count * (1 if releases[name].once else turns)", "count"),
            ("sums: a plan counts in each turn", "count * (1 if releases[name].once else turns)", "count * turns"),
            (
                "sums: a plan charges bits beside gradients",
                "for name, charge in join_drawn(charges).items():",
                "for name, charge in charges.items():",
            ),
            ("sums: a plan is kept by any noise", "found[rate, met] += count", "found[rate, (met[0],) * 3] += count"),
        ],
    ),
    (
        "federation/client.py",
        "tests/methods/test_dp_fedsgd.py tests/test_battery.py",
        [
            ("sums: values of another question pass", "asked = (question.number, (client,))", "asked = None"),
            (
                "stacks: the records of those who were stacked first",
                "found = self._records.get(clients)",
                "found = next(iter(self._records.values()), None)",
            ),
            (
                "sums: gradients are never normalised",
                "clip.reshape(1, 1), thresholds.normalised)",
                "clip.reshape(1, 1), False)",
            ),
        ],
    ),
    (
        "federation/server.py",
        "tests/methods/test_dp_fedsgd.py",
        [
            (
                "sums: any number of clients is asked",
                "noise = self._gate.allowance.shared",
                "noise = self._gate.allowance.noise",
            )
        ],
    ),
    (
        "methods/dp_fedsgd.py",
        "tests/methods/test_dp_fedsgd.py",
        [
            (
                "dp-fedsgd: the step follows no noise",
                "return min(largest, walk / (noise * math.sqrt(fed.schedule.rounds))) if noise else largest",
                "return largest",
            ),
            ("dp-fedsgd: a linear model begins at random", '("zero" if is_linear(fed) else "network")', '"network"'),
            ("dp-fedsgd: all begin with zeros", 'self.start or ("zero" if is_linear(fed) else "network")', '"zero"'),
            ("dp-fedsgd: up the hill", '-got.mean("gradient")', 'got.mean("gradient")'),
            (
                "dp-fedsgd: the tail begins too early",
                "before = number - rounds // 2",
                "before = number - rounds // 2 + 1",
            ),
            (
                "dp-fedsgd: weights in proportion",
                "1 / (len(frequencies) * frequencies)",
                "len(frequencies) * frequencies",
            ),
            (
                "dp-fedsgd: weights without counts",
                'if self.class_weight == "balanced" and not self.counts:',
                "if False:",
            ),
            (
                "dp-fedsgd: bias of other outputs",
                "changed[-len(bias) :] = bias",
                "changed[: len(bias)] = bias",
            ),
        ],
    ),
    (
        "parts/sum_thresholds.py",
        "tests/methods/test_dp_fedsgd.py",
        [
            ("dp-fedsgd: the threshold flees the quantile", "(self.quantile - within)", "(within - self.quantile)"),
            ("dp-fedsgd: bits beside the whole budget", "share=1 - self.share", "share=1.0"),
            ("dp-fedsgd: nothing is normalised", "rate, normalised=True)", "rate)"),
        ],
    ),
    (
        "privacy/gradients.py",
        "tests/privacy/test_persons.py",
        [
            (
                "persons: rows are weighed alike, padding too",
                "values.unflatten(0, shares.shape), shares)",
                "values.unflatten(0, shares.shape), torch.full_like(shares, 1 / shares.shape[1]))",
            ),
            ("persons: weights of rows are forgotten", "self.shares * weights", "self.shares"),
            ("persons: blank ones hold the raw ones", "Units(torch.zeros_like(self.x), torch", "Units(self.x, torch"),
        ],
    ),
    (
        "learning/singles.py",
        "tests/privacy/test_persons.py",
        [
            ("persons: rows are added up, padding too", "(losses * shares).sum()", "losses.sum()"),
            ("persons: rows are not averaged", "(losses * shares).sum()", "(losses * (shares > 0)).sum()"),
        ],
    ),
    (
        "federation/client.py",
        "tests/privacy/test_persons.py",
        [
            (
                "persons: test rows weigh one each",
                "if self._keeper is None or persons is None:",
                "if True:",
            ),
            (
                "persons: rows are the units",
                "    if records.persons is None:\n        x, y = records.part",
                "    if True:\n        x, y = records.part",
            ),
        ],
    ),
    (
        "data/persons.py",
        "tests/data/test_codes_of_persons.py tests/privacy/test_persons.py",
        [
            ("persons: any number of rows", "left_out]] = False", "left_out]] = True"),
            (
                "persons: the first rows are drawn",
                "random.permutation(int(rows[place]))",
                "np.arange(int(rows[place]))",
            ),
            ("persons: others' rows move draws", "int(numbers[place])])", "len(person)])"),
            ("persons: those without a code are one", "casefold() not in NOBODY", "casefold() != ''"),
            ("persons: codes are compared over clients", "zip(clients.tolist(), codes", "zip(0 * clients, codes"),
            (
                "persons: shares of more than one",
                "np.where(steps < rows, 1 / rows, 0.0)",
                "np.where(steps < rows, 1.0, 0.0)",
            ),
        ],
    ),
    (
        "data/encoding.py",
        "tests/data/test_codes_of_persons.py",
        [("persons: rows without a code are kept", " and names_somebody(text) for text", " for text")],
    ),
    (
        "data/own.py",
        "tests/data/test_codes_of_persons.py",
        [("persons: records without a code are kept", "all(map(names_somebody, codes))", "all(codes)")],
    ),
    (
        "deploy/site/judging.py",
        "tests/deploy/test_tables.py",
        [
            ("persons: sites judge rows apart", "labels, None, persons=made.kept_persons)", "labels, None)"),
        ],
    ),
    (
        "data/own.py",
        "tests/data/test_codes_of_persons.py",
        [
            (
                "persons: the first file of sequences speaks for all",
                "not any(holds(path, PERSON_ARRAY) for path in paths)",
                "not holds(paths[0], PERSON_ARRAY)",
            ),
        ],
    ),
    (
        "data/federate.py",
        "tests/data/test_codes_of_persons.py",
        [
            (
                "persons: rows have pools of their own",
                "split(client[first], len(names), test_fraction, split_rng)[member]",
                "split(client, len(names), test_fraction, split_rng)",
            ),
            (
                "persons: rows are dealt one by one",
                "dataset.y.numpy()[first], dataset.task, count, deal_rng)[member]",
                "dataset.y.numpy()[pool], dataset.task, count, deal_rng)",
            ),
            ("persons: others have the same fingerprint", "[*shared, *of_whom]", "shared"),
            (
                "persons: all rows are trained on",
                "    drawn = draw_rows(dataset.person[trained], dataset.person_rules.max_rows,",
                "    drawn = draw_rows(dataset.person[trained], 10**6,",
            ),
        ],
    ),
    (
        "data/selection.py",
        "tests/data/test_codes_of_persons.py",
        [("persons: fewer rows of each", "if dataset.person is None:\n        chosen[", "if True:\n        chosen[")],
    ),
    (
        "privacy/accounting/sampled_gaussian.py",
        "tests/privacy/test_persons.py",
        [
            (
                "persons: sites are seen apart alone",
                "return max(person_epsilon(((recipe, sites),), delta), record_epsilon(apart, delta))",
                "return record_epsilon(apart, delta)",
            ),
            (
                "persons: one site pays",
                "if sites == 1:\n        return max((record_epsilon",
                "if True:\n        return max((record_epsilon",
            ),
            (
                "persons: one site is attacked",
                "if sites == 1:\n        return max((record_attack",
                "if True:\n        return max((record_attack",
            ),
            ("persons: the cheaper recipe covers", "min(z for _, z in counts)", "max(z for _, z in counts)"),
            ("persons: the smaller rate covers", "max(rate for rate, _ in counts)", "min(rate for rate, _ in counts)"),
            (
                "persons: the last recipe covers",
                "counts[kind] = max(counts.get(kind, 0), count)",
                "counts = {kind: count}",
            ),
        ],
    ),
    (
        "privacy/accounting/calibration.py",
        "tests/privacy/test_persons.py",
        [
            (
                "persons: noise for one site",
                "return record_epsilon if sites == 1 else",
                "return record_epsilon if True else",
            )
        ],
    ),
    (
        "privacy/budget/record_level_plan.py",
        "tests/privacy/test_persons.py",
        [
            ("persons: sums for one site", "(mu_of(largest, delta) / sites) ** 2", "mu_of(largest, delta) ** 2"),
            (
                "persons: figures beside gradients at several sites",
                "if sites > 1 and (needs.means or needs.matrix_share):",
                "if False:",
            ),
        ],
    ),
    (
        "privacy/ledger.py",
        "tests/privacy/test_persons.py",
        [
            (
                "persons: the ledger forgets sites",
                "self.unit, self.sites = unit, sites",
                "self.unit, self.sites = unit, 1",
            ),
            (
                "persons: promises hold at several sites",
                "if self._promises():\n            return math.inf\n        known",
                "known",
            ),
            ("persons: whole numbers of one site", "many = self.sites * int(", "many = int("),
        ],
    ),
    (
        "terms.py",
        "tests/privacy/test_persons.py",
        [
            (
                "persons: the method's unit",
                "return Unit.PERSON, persons.max_sites",
                "return method.unit, persons.max_sites",
            ),
            (
                "persons: figures of records leave bare",
                "            _check_persons(experiment, steps)\n",
                "            pass\n",
            ),
            (
                "persons: planned for one site",
                "calibration, minimum, sites)",
                "calibration, minimum)",
            ),
        ],
    ),
    (
        "experiment/prepare.py",
        "tests/privacy/test_persons.py",
        [
            (
                "persons: rows are counted",
                "sizes=data.train.units if units else data.train.sizes",
                "sizes=data.train.sizes",
            )
        ],
    ),
    (
        "store/ledger_rows.py",
        "tests/privacy/test_persons.py",
        [("persons: a stored run forgets sites", "return int(declared)", "return 1")],
    ),
    (
        "store/spending.py",
        "tests/privacy/test_persons.py",
        [
            (
                "persons: rows of persons pay as records",
                "    if unit is not Unit.PERSON:\n        return run",
                "    if True:\n        return run",
            ),
            (
                "persons: what sampling hides of a row",
                "(1.0, multiplier / 2, count) for _, multiplier",
                "(_, multiplier / 2, count) for _, multiplier",
            ),
            (
                "persons: runs of rows protect them",
                "if not all(_counts_for(one, Unit.PERSON) for one in spent):",
                "if False:",
            ),
            ("persons: other columns are the same persons", "if len(columns) > 1 or any(", "if any("),
            ("persons: rows that were dealt one by one", ' or any("together" not in one for one in spent)', ""),
            (
                "persons: promises hold for rows",
                'if any("promised" in one and Unit(',
                'if False and any("promised" in one and Unit(',
            ),
            (
                "persons: runs know them at one site",
                'sites = max((one.get("sites", 1) for one in spent), default=1)',
                "sites = 1",
            ),
            (
                "persons: spending forgets sites",
                'return {**found, "sites": sites} if sites > 1 else found',
                "return found",
            ),
        ],
    ),
    (
        "deploy/site/rules.py",
        "tests/deploy/test_persons_at_sites.py",
        [
            ("persons: sites take any unit", "if unit is not rules.unit:", "if False:"),
            ("persons: sites take any column", "if terms.persons.column != rules.person:", "if False:"),
            ("persons: sites take any number of sites", "if terms.sites < known:", "if False:"),
        ],
    ),
    (
        "deploy/site/spending.py",
        "tests/deploy/test_persons_at_sites.py",
        [
            ("persons: reservations for rows hold", "        if unit is not self.unit:", "        if False:"),
            ("persons: reservations at one site hold at all", "(sites <= self.sites and person", "(person"),
            ("persons: reservations hold by any column", "person in (None, self.person)", "True"),
            ("persons: a whole site at one site", "known = sites if unit is Unit.PERSON else 1", "known = 1"),
            ("persons: whole numbers of one site", "integer_gap(sites * many", "integer_gap(many"),
        ],
    ),
    (
        "deploy/site/session.py",
        "tests/deploy/test_persons_at_sites.py",
        [
            ("persons: a site counts rows", "int(data.train.units[number])", "int(data.train.sizes[number])"),
            ("persons: a site forgets whom it reserved for", ', "person": terms.persons.column}', "}"),
        ],
    ),
    (
        "deploy/site/judging.py",
        "tests/deploy/test_tables.py",
        [("persons: rows are judged on", ", persons=made.kept_persons)", ")")],
    ),
    (
        "deploy/site/verify.py",
        "tests/deploy/test_persons_at_sites.py",
        [
            (
                "persons: verified at one site",
                "finite_or_none(one.by_rules(rules))",
                "finite_or_none(one.epsilon(rules.unit, rules.max_delta))",
            ),
        ],
    ),
    (
        "deploy/site/data.py",
        "tests/deploy/test_persons_at_sites.py",
        [
            ("persons: rows without them are taken", "if of_whom is not None and found.persons is None:", "if False:"),
            (
                "persons: a site's rows have pools of their own",
                "np.arange(len(found.labels)) if person is None else person",
                "np.arange(len(found.labels))",
            ),
            (
                "persons: a site trains on all rows",
                "draw_rows(person[places], of_whom.max_rows,",
                "draw_rows(person[places], 10**6,",
            ),
        ],
    ),
    (
        "deploy/terms.py",
        "tests/deploy/test_persons_at_sites.py",
        [
            (
                "persons: a site plans for one",
                "functools.partial(sites_epsilon, seen, self.sites)",
                "functools.partial(sites_epsilon, seen, 1)",
            ),
            ("persons: whole numbers of one site's messages", "met = self.sites * (", "met = ("),
        ],
    ),
    (
        "deploy/declarations.py",
        "tests/deploy/test_persons_at_sites.py",
        [("persons: own noise at several sites", "persons is not None and persons.max_sites > 1 and", "False and")],
    ),
]
MUTANTS = [Mutant(*one[:1], file, *one[1:], tests) for file, tests, ones in BY_FILE for one in ones]


def main() -> None:
    """Try each mutant and tell which survived."""
    parser = argparse.ArgumentParser(description="Break the code on purpose and see that the tests notice.")
    parser.add_argument("words", nargs="*", metavar="WORD", help="try mutants whose name or file has one of these")
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted run of the same sources")
    parser.add_argument("--jobs", type=int, default=2, help="mutants that are tried at once")
    given = parser.parse_args()
    chosen = [one for one in MUTANTS if not given.words or any(word in one.key for word in given.words)]
    for one in chosen:
        if one.before not in (ROOT / "sordino" / one.file).read_text():
            sys.exit(f"{one.name}: {one.file} no longer holds {one.before!r}; bring the mutant up to date.")
    for heavy in HEAVY:
        importlib.import_module(heavy)
    runner = Runner(ROOT, ROOT / "tests/killers.json", ROOT / "build/mutants.json", LATER, jobs=given.jobs)
    try:
        found = runner.run(chosen, MUTANTS, given.resume)
    except KeyboardInterrupt:
        sys.exit("Interrupted; --resume goes on from here.")
    sys.exit(0 if all(verdict == CAUGHT for verdict in found.values()) else 1)


if __name__ == "__main__":
    main()
