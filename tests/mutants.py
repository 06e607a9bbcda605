"""Break the code of privacy and of methods on purpose, one line at a time, and see that the tests notice.

    python tests/mutants.py [WORD...]

Each mutant is a text replacement in a copy of the package. The tests that should notice run first, then all of the
privacy tests, then the methods' and the contract battery. A mutant that no test kills is a hole in the suite: the
script then ends with exit code 1. With words, only mutants are tried whose name or file has one of them. Two are tried
at once.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
HEAVY = (
    "dp_accounting.pld",
    "dp_accounting.rdp",
    "hypothesis",
    "pydantic",
    "scipy.stats",
    "sklearn.isotonic",
    "torch.func",
)
"""What tests import besides the package itself."""
LATER = ("tests/privacy", "tests/methods tests/test_contract.py tests/test_own_methods.py tests/test_devices.py")
"""What runs where the tests that should notice do not."""


@dataclass(frozen=True)
class Mutant:
    """One replacement, and the tests that should notice it."""

    name: str
    file: str
    before: str
    after: str
    tests: str


# File of the package: the tests that should notice, then each mutant's name, a text and what replaces its first place.
BY_FILE: dict[str, tuple[str, list[tuple[str, str, str]]]] = {
    "privacy/noise.py": (
        "tests/privacy/test_noise.py tests/privacy/test_integers.py",
        [
            ("one draw for all clients", "purpose, clients)", "purpose, [0] * len(clients))"),
            ("one draw for all seeds", "(self.seed, self.identity), purpose", "(self.identity,), purpose"),
            ("one draw for all runs", "(self.seed, self.identity), purpose", "(self.seed,), purpose"),
            ("one draw for all purposes", "(self.seed, self.identity), purpose", "(self.seed, self.identity), ()"),
            (
                "the purpose's last part is left out",
                "(self.seed, self.identity), purpose",
                "(self.seed, self.identity), purpose[:-1]",
            ),
            ("the ground depends on the experiment", "8, (self.seed,)", "8, (self.seed, self.identity or 0)"),
            ("one ground for all seeds", "8, (self.seed,)", "8, ()"),
            ("one run's draws for all", "_begun(kind, size, run).copy()", "_begun(kind, size, run)"),
            ("noise without an identity", "if self.identity is None:", "if False:"),
            ("secure words that are known", "os.urandom(8 * count)", "bytes(8 * count)"),
            (
                "whole numbers: one draw for all clients",
                'b"integers", purpose, clients)',
                'b"integers", purpose, [0] * len(clients))',
            ),
            ("coins from the noise's key", 'b"coins"', 'b"noise"'),
            (
                "one coin for all clients",
                "purpose[:-1], purpose[-1:])\n        return fallen",
                "purpose[:-1], [0])\n        return fallen",
            ),
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
    "privacy/integers.py": (
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
            ("columns are not checked", "if held(table) != wanted:", "if False:"),
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
    "privacy/mechanism.py": (
        "tests/privacy/test_mechanism.py tests/privacy/test_gate.py tests/privacy/test_gradients.py",
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
                "source.words(purpose, clients))",
                "source.words(purpose, [0] * len(clients)))",
            ),
            (
                "integers: no bound",
                "integers.rounded(mine, bound, deviation, grid)",
                "integers.rounded_sum(mine, deviation, grid)",
            ),
            ("integers: sums without noise", "whole += RECORDS.noise(words, whole.size)", "pass"),
            ("integers: noise of another grid", "else RECORDS\n", "else CLIENTS\n"),
            (
                "integers: nothing is refused",
                "integers.check_signal(CLIENTS.longest(bound, deviation), len(entries))",
                "pass",
            ),
        ],
    ),
    "deploy/masking.py": (
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
            ("keys serve several asks", "(PROTOCOL, self.cohort.ask, *purpose)", "(PROTOCOL, *purpose)"),
            ("one key for several shares", "salt = os.urandom(KEY_BYTES)", "salt = bytes(KEY_BYTES)"),
            ("a share for anybody", 'b"share", self.identity, receiver, salt)', 'b"share", salt)'),
            ("cohorts that show single messages", "colluders, active_server) >= 2:", "colluders, active_server) >= 1:"),
            ("another site's key is taken", "!= public_key(private):", "!= public_key(private) and False:"),
        ],
    ),
    "deploy/sharing.py": (
        "tests/deploy/test_sharing.py",
        [
            ("one share is the secret", "for _ in range(threshold - 1))", "for _ in range(0))"),
            ("known polynomials", "*(secrets.randbelow(FIELD) for", "*(7 for"),
            ("wrong shares are taken", "!= shares[other]:", "!= shares[other] and False:"),
        ],
    ),
    "deploy/working.py": (
        "tests/deploy/test_failures.py tests/deploy/test_attacks.py tests/deploy/test_fuzz.py",
        [
            (
                "what leaves is not charged",
                "book.append(payable(book.entries(), session, cost, desk.allowed))",
                "payable(book.entries(), session, cost, desk.allowed)",
            ),
            ("a second draw for one ask", "book.keep(work.ask, work.hash,", "0 and book.keep(work.ask, work.hash,"),
            (
                "the same ask with another content",
                'if bytes(kept["hash"]) != work.hash:',
                "if False:",
            ),
            ("old questions are answered", "if last is not None and work.ask.order <= last:", "if False:"),
            ("what was lost is drawn again", "work.ask.order <= last:", "work.ask.order < last:"),
            (
                "the filter is not asked again",
                "book.append(payable(book.entries(), session, cost, desk.allowed))",
                "book.append(cost)",
            ),
        ],
    ),
    "deploy/opening.py": (
        "tests/deploy/test_failures.py",
        [("a second list of survivors is answered", 'if kept["survivors"] is not None:', "if False:")],
    ),
    "deploy/paying.py": (
        "tests/deploy/test_failures.py tests/deploy/test_attacks.py",
        [
            ("the filter is skipped", "if entries and not spending.fits(", "if False and not spending.fits("),
            ("two plans in one run", "one.sampled != row.sampled for one in paid):", "False for one in paid):"),
            ("records' turns are not counted", "if row.pool and session.left(row, paid) < 1:", "if False:"),
        ],
    ),
    "deploy/copies.py": (
        "tests/deploy/test_failures.py tests/deploy/test_attacks.py",
        [
            (
                "forged heads are believed",
                "if place and not keys.is_signed(own, mine, *_said(seen)):",
                "if False:",
            ),
            ("restored ledgers go on", "if place and book.link(place) != known:", "if False:"),
            (
                "the server's echo is not heard",
                "if echo.position and book.link(echo.position)",
                "if False and book.link(0)",
            ),
            ("spoiled ledgers go on", 'if any(entry.kind == "spoiled" for entry in book.entries()):', "if False:"),
        ],
    ),
    "deploy/accuracies.py": (
        "tests/deploy/test_accuracies.py",
        [
            ("shared accuracies are not charged", "books.charge(books.ledger.charge(sent,", "id((sent,"),
            ("less noise on shared accuracies", "(len(NAMES) * (1 - share))", "(1 - share)"),
        ],
    ),
    "deploy/misfits.py": (
        "tests/deploy/test_attacks.py",
        [
            ("misfits are told without end", "len(told) >= allowed.rules.max_misfits:", "False:"),
            ("misfits are not written down", "book.append([Entry(KIND,", "id([Entry(KIND,"),
        ],
    ),
    "deploy/database.py": (
        "tests/deploy/test_attacks.py",
        [("altered rows are read", "if row.pop(DIGEST) != table.digest(row):", "if row.pop(DIGEST) is None:")],
    ),
    "deploy/book.py": (
        "tests/deploy/test_failures.py",
        [
            (
                "a ledger without its last rows",
                "if _stored(Head(len(self._read), self._link)) != self.known(HEAD):",
                "if not self._read:",
            )
        ],
    ),
    "deploy/enrolling.py": (
        "tests/deploy/test_failures.py tests/deploy/test_attacks.py",
        [
            ("other code's noise", "if terms.identity != identity:", "if False:"),
            ("files that a server names", "if experiment.build_method().files():", "if False:"),
        ],
    ),
    "deploy/session.py": (
        "tests/deploy/test_session.py tests/deploy/test_terms.py tests/deploy/test_attacks.py "
        "tests/deploy/test_failures.py tests/deploy/test_equality.py",
        [
            ("wider matrices than were reserved for", "self.terms.check_reserved(rows)", "pass"),
            ("cohorts of any size", "if not terms.minimum <= len(parties) <= terms.schedule.cohort:", "if False:"),
            ("strangers in the cohort", "allowed.check_members(", "id("),
            (
                "a site counts gradients by their names",
                "names = same_turns(steps, row.step, row.release)",
                "names = {row.release}",
            ),
            ("bounds are not looked at", "allowed.check_question(terms, releases, public, self.gate)", "pass"),
            ("noise from the seed", "if terms.seeded:", "if True:"),
            (
                "keys that nobody signed",
                "if not keys.is_signed(party.identity,",
                "if False and not keys.is_signed(party.identity,",
            ),
            ("one draw for all attempts", "(work.ask.attempt << 32)", "0"),
        ],
    ),
    "deploy/rules.py": (
        "tests/deploy/test_rules.py tests/deploy/test_failures.py tests/deploy/test_attacks.py",
        [
            ("any method", "if method not in self.rules.methods:", "if False:"),
            ("any network", "if model not in networks:", "if False:"),
            ("a cut file allows eight", "Field(gt=0)", "Field(default=8.0, gt=0)"),
            ("a cut file allows any cohort", "Field(ge=1)", "Field(default=3, ge=1)"),
            ("a digest without its key", "hmac.new(secret,", "hmac.new(bytes(32),"),
            ("a roster is no rule", 'model_dump(mode="json"), members]', 'model_dump(mode="json")]'),
            ("settings that name code", "if strange:", "if False:"),
            ("a trusted server", "if not experiment.active_server and not", "if False and not"),
            ("thresholds beyond the rules", "if bounds is not None and", "if False and"),
            ("numbers that are not finite", "check_finite(public.message)", "pass"),
            ("what one alone is told", "if isinstance(value, Each):", "if False:"),
        ],
    ),
    "deploy/site.py": (
        "tests/deploy/test_rules.py",
        [
            ("a change of rules is not in the ledger", "            book.append(changed)", "            pass"),
            ("a change of rules is not told", "news = [RULES_CHANGED] if", "news = [] if"),
        ],
    ),
    "flower/link.py": (
        "tests/flower/test_guard.py",
        [
            ("announced bodies of any length", "int(value) > self.largest for", "False for"),
            ("endless bodies", "if self._left >= 0:", "if True:"),
            (
                "an endless body is answered twice",
                "if not self._refused:\n            await self._send",
                "if True:\n            await self._send",
            ),
        ],
    ),
    "deploy/reserving.py": (
        "tests/deploy/test_rounds.py",
        [("a round tells all that is reserved", "if self.reasons() or", "if True or")],
    ),
    "deploy/spending.py": (
        "tests/deploy/test_spending.py",
        [
            ("records pay for the site once", "self._of_the_whole(2, left)", "self._of_the_whole(1, left)"),
            ("deltas are not added up", "left = delta - sum(one for _, one in self.reserved.values())", "left = delta"),
            ("the last run alone", "self.squares += float(", "self.squares = float("),
            ("record-level runs cost the site nothing", "math.inf if self.reserved else", ""),
            ("gaps are free", "for shares, many in self.entries.items()]", "for shares, many in ()]"),
        ],
    ),
    "deploy/terms.py": (
        "tests/deploy/test_terms.py tests/deploy/test_agreement.py tests/deploy/test_failures.py",
        [
            ("U_min instead of h", "return masking.honest_shares(*cohort)", "return minimum"),
            ("a single message may show", "masking.check_cohort(*cohort)", "pass"),
            ("whole numbers are free", "whole=not seeded", "whole=False"),
            ("a known seed is no reason", 'known=SEED_IS_KNOWN if seeded else ""', 'known=""'),
            ("what a schema read is not told", "[*read_from_records(experiment), *", "[*"),
            ("what a method discloses at sites", "*not_covered_before(experiment, method)]", "]"),
            (
                "sites' caveats",
                "        notes=notes_before(experiment, method, ",
                "        notes=[] and notes_before(experiment, method, ",
            ),
            ("sites' personal layers", "    check_head(method, learner.layout)\n", ""),
            ("noise for sizes that nobody declared", "    check_published(experiment, method)\n", ""),
            ("spare turns are free", "schedule.turns + experiment.spare_turns", "schedule.turns"),
        ],
    ),
    "deploy/declared.py": (
        "tests/deploy/test_terms.py tests/deploy/test_failures.py",
        [("bare releases", "if not release.private:", "if False:")],
    ),
    "deploy/wire.py": (
        "tests/deploy/test_wire.py",
        [
            ("messages of any size", "if len(content) > most:", "if False:"),
            ("booleans that are none", "bool((content > 1).any())", "False"),
            ("bodies with more than is named", "if body or not", "if not"),
            ("keys that come twice", "if len(found) < len(pairs):", "if False:"),
        ],
    ),
    "learning/pages.py": (
        "tests/privacy/test_clipping.py",
        [
            ("rounding of the sum is left out", ", self.inputs) * apart", ", self.inputs) * 0"),
            ("rounding is taken for a tenth", ".eps / 2)", ".eps / 20)"),
            ("activations in float32", "(part.double() for part in", "(part for part in"),
            ("norms in float32", "dim=1, dtype=torch.float64)", "dim=1).double()"),
            ("the bias is left out", "products + 1 if", "products if"),
            ("a bias's norm for its weight", "[slopes * _provable(", "[slopes + 0 * _provable("),
            (
                "positions of a bias are not added up",
                "torch.ones_like(seen))",
                "torch.eye(seen.shape[1]).to(seen).expand_as(seen))",
            ),
            ("a weight's factor for its bias", "self._weighed(each[1])", "slope"),
        ],
    ),
    "privacy/clipping.py": (
        "tests/privacy/test_clipping.py",
        [
            ("no clipping", ".clamp(max=1)", ".clamp(min=1, max=1)"),
            ("clipping too little by 1e-4", "(1 - 2**-23)", "(1 + 1e-4)"),
            ("the largest threshold for all layers", "clip.double() *", "clip.double().max() *"),
        ],
    ),
    "privacy/allowance.py": (
        "tests/privacy/test_gate.py tests/privacy/test_ledger.py",
        [
            ("half the noise, charged alike", "self.multiplier / math", "0.5 * self.multiplier / math"),
            ("noise shared out once more", "self.minimum_cohort - self.colluders if", "self.minimum_cohort**2 if"),
            ("shares are ignored", "math.sqrt(share)", "1.0"),
            (
                "the server's word on who answered",
                "return (asked, self.colluders) if self.shares is None",
                "return (asked, 0) if True",
            ),
        ],
    ),
    "privacy/release/bounding.py": (
        "tests/privacy/test_gate.py",
        [
            ("no clipping", "threshold / norms * (1 - 2**-22)", "torch.ones_like(norms)"),
            ("no clipping of short rows' neighbours", "> threshold).any():", "> threshold).all():"),
            ("clipping to twice the threshold", "threshold / norms *", "2 * threshold / norms *"),
            ("clipping that rounds above", "(1 - 2**-22)", "(1 + 2**-20)"),
            ("numbers are not held", ".clamp(-half, half)", ".clamp(-1e9, 1e9)"),
            ("numbers are not centred", "rows.double() - (low + high) / 2", "rows.double()"),
            ("numbers are centred in float32", "rows.double() -", "rows -"),
            ("any range will do", "LEAST <= high - low <= MOST", "True"),
            ("any threshold will do", "(thresholds >= LEAST) & (thresholds <= MOST)", "(thresholds > 0)"),
        ],
    ),
    "privacy/release/of_clients.py": (
        "tests/privacy/test_gate.py tests/privacy/test_ledger.py",
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
            ("no threshold is looked at", "check_thresholds(thresholds, self.describe())", "pass"),
            ("no range is looked at", "check_range(self, self.low, self.high)", "pass"),
        ],
    ),
    "privacy/release/base.py": (
        "tests/privacy/test_gate.py tests/privacy/test_sealed.py tests/privacy/test_ledger.py",
        [
            ("messages of any width", "if wanted is not None and rows.shape[1] != wanted:", "if False:"),
            ("sealed values leave under any release", "if not isinstance(value, Tensor):", "if False:"),
            ("bare NaN passes", "torch.where(finite.unsqueeze(1), rows, torch.zeros_like(rows)), int", "rows, int"),
            ("a bare release is free", "np.zeros((1, len(VIEWS))), reason", "np.ones((1, len(VIEWS))) * 1e9, reason"),
        ],
    ),
    "privacy/release/of_records.py": (
        "tests/privacy/test_sealed.py tests/privacy/test_gradients.py",
        [
            ("means of records that nobody set aside", "if not 0 < self.held_out < 1:", "if False:"),
            (
                "separate tensors cost what one costs",
                "parts = self.thresholds(public).shape[1]",
                "parts = 1",
            ),
            (
                "separate tensors cost what a plan says",
                "return not self.separate",
                "return True",
            ),
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
            ("means are not held", "single = held(rows, self.low, self.high)", "single = held(rows, -1e9, 1e9)"),
            (
                "records of a matrix are not shortened",
                "kept = shortened(kept, lengths(kept)",
                "kept = kept if True else shortened(kept, lengths(kept)",
            ),
        ],
    ),
    "privacy/release/others.py": (
        "tests/privacy/test_ledger.py tests/test_own_methods.py tests/test_no_privacy.py",
        [
            ("published masks are free", '= "everything"', '= "nothing"'),
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
    "privacy/release/declaring.py": (
        "tests/test_own_methods.py tests/privacy/test_gradients.py",
        [
            ("releases of any kind", "if not type(release).__module__.startswith(OURS):", "if False:"),
            ("noise for another unit is taken", "if release.unit not in (None, unit):", "if False:"),
            ("shares beyond a round's budget", "if whole > 1 + 1e-9:", "if False:"),
            ("followers of nothing", "if missing:", "if False:"),
            ("two takers of the same gradients", "if len(gradients) > 1:", "if False:"),
            ("two matrices at the price of one", "matrices=max(1, len(once)),", "matrices=1,"),
        ],
    ),
    "privacy/sealed.py": (
        "tests/privacy/test_sealed.py",
        [
            ("sealed values can be multiplied", "__mul__ = __rmul__", "__nothing__ = __nothing_else__"),
            ("sealed values show themselves", 'f"<sealed {self.kind}', 'f"{self.__value} <sealed {self.kind}'),
        ],
    ),
    "privacy/views.py": (
        "tests/privacy/test_ledger.py",
        [
            ("the server is taken for an outsider", 'if view == "server":', 'if view == "nobody":'),
            ("a peer's own noise is forgotten", '1 if view == "peer" else 0', "0"),
            ("the smallest shares are known", "-np.sort(-variances, axis=0)", "np.sort(variances, axis=0)"),
        ],
    ),
    "privacy/gate.py": (
        "tests/privacy/test_gate.py tests/privacy/test_gradients.py tests/test_contract.py",
        [
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
            ("records: gradients leave bare", "SampledGradients if charge[1] > 0", "BareGradients if charge[1] > 0"),
            ("records: nothing is scaled down", "self.limit = self.clip", "self.limit = self.clip * 1e9"),
        ],
    ),
    "privacy/gradients.py": (
        "tests/privacy/test_gradients.py tests/test_contract.py",
        [
            ("records: NaN spoils the sum", "chosen[known]", "chosen"),
            (
                "records: validation records are trained on",
                "self.__x, self.__y = x[~validation], y[~validation]",
                "self.__x, self.__y = x, y",
            ),
            (
                "records: metrics on training records",
                "self.__judge = (x[validation], y[validation])",
                "self.__judge = (x[~validation], y[~validation])",
            ),
            ("records: raw values are handed out", "self.__bare = (x, y) if bare else None", "self.__bare = (x, y)"),
            (
                "records: training records' gradients are counted",
                "self._part_norms(flat, *self.__judge), dim=1)",
                "self._part_norms(flat, self.__x, self.__y), dim=1)",
            ),
            (
                "records: raw norms are handed out",
                "return self._part_norms(flat, *self.raw(), parts",
                "return self._part_norms(flat, self.__x, self.__y, parts",
            ),
            (
                "records: lengths of training records",
                "self._part_norms(flat, *self.__judge)",
                "self._part_norms(flat, self.__x, self.__y)",
            ),
            (
                "records: lengths leave unsealed",
                'return Sealed((lengths <= self.clip).to(flat.dtype), "validation",',
                "return (lambda value, kind: value)((lengths <= self.clip).to(flat.dtype),",
            ),
        ],
    ),
    "privacy/records.py": (
        "tests/privacy/test_gradients.py tests/privacy/test_losses.py tests/test_contract.py",
        [
            ("records: replaced ones cost no more", "multiplier / 2, count", "multiplier, count"),
            ("records: the cheaper of adding and removing", "max(losses.epsilon(delta)", "min(losses.epsilon(delta)"),
            ("records: no noise costs nothing", "return math.inf", "return 0.0"),
            (
                "records: whole batches are paid for once",
                "sum(count / multiplier**2 for _, multiplier, count",
                "sum(1 / multiplier**2 for _, multiplier, count",
            ),
            ("records: the quick bound counts one step", "sum(count * _divergences(", "sum(_divergences("),
            (
                "records: an attacker who is told nothing",
                "max((1 + losses.delta()) / 2",
                "max((0 + losses.delta()) / 2",
            ),
        ],
    ),
    "privacy/record_search.py": (
        "tests/privacy/test_gradients.py tests/privacy/test_remembered.py tests/test_contract.py",
        [
            (
                "records: searches end above the budget",
                "return math.log(spent / epsilon)",
                "return math.log(spent / epsilon / 1.1)",
            ),
            (
                "records: noise forgets what else is released",
                "(*others, (rate, FINE**place, steps))",
                "((rate, FINE**place, steps),)",
            ),
            (
                "records: where a search ended before is believed",
                "found = first_within(excess, guess() if known is None else known, low, high)",
                "found = first_within(excess, guess(), low, high) if known is None else known",
            ),
        ],
    ),
    "privacy/published_rates.py": (
        "tests/privacy/test_published_rates.py",
        [
            (
                "published rates: the noise of another accountant",
                "epsilon, delta, quick_record_epsilon)",
                "epsilon, delta)",
            ),
            (
                "published rates: above the largest",
                "most * min(max(part, LEAST_RATE), 1.0)",
                "most * max(part, LEAST_RATE)",
            ),
            (
                "published rates: below zero",
                "most * min(max(part, LEAST_RATE), 1.0)",
                "most * min(part, 1.0)",
            ),
            (
                "published rates: budgets below the accountant's least are fitted",
                "if epsilon <= quick_record_epsilon(((most * LEAST_RATE, multiplier, steps),), delta):",
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
    "privacy/record_plan.py": (
        "tests/privacy/test_published_rates.py tests/privacy/test_gradients.py tests/test_contract.py",
        [
            ("records: one step is charged", "int(self.steps[client])", "1"),
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
                "int(count) * turns, rate, others)",
                "int(count) * turns, rate)",
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
                'trained if varied == "noise" else',
                'trained if varied != "sampling" else',
            ),
        ],
    ),
    "privacy/stacked_gradients.py": (
        "tests/privacy/test_stacked_gradients.py",
        [
            (
                "stacks: thresholds of other clients",
                "factors = clipping_factors(norms, limits)",
                "factors = clipping_factors(norms, limits.flip(0))",
            ),
            (
                "stacks: nothing is scaled down",
                "factors = clipping_factors(norms, limits)",
                "factors = torch.ones(norms.shape[:2])",
            ),
            (
                "stacks: who was not chosen counts too",
                "counts, order = counts[:, :most], order[:, :most]",
                "counts, order = torch.ones_like(counts[:, :most]), order[:, :most]",
            ),
            (
                "stacks: records that are not finite count",
                "known = torch.isfinite(norms[client]).all(dim=1) &",
                "known = (norms[client] > -1).all(dim=1) &",
            ),
            ("stacks: one gradient for all clients", 'if not torch.equal(place, self.figures["place"]):', "if False:"),
        ],
    ),
    "learning/stacked_books.py": (
        "tests/privacy/test_clipping.py",
        [
            ("stacks: the bias is forgotten", "(1 if layer.bias else 0)", "0"),
            (
                "stacks: rounding is forgotten",
                "* self._growth()",
                "",
            ),
            ("stacks: huge records are believed", "torch.where(reach <= LARGEST**2, reach, torch.inf)", "reach"),
        ],
    ),
    "privacy/losses.py": (
        "tests/privacy/test_losses.py",
        [
            (
                "losses: added records alone",
                "_together(removed, counts, grid, windows[0]",
                "_together(added, counts, grid, windows[1]",
            ),
            ("losses: tails are forgotten", "infinite = -math.expm1(finite) + TAIL * delta", "infinite = 0 * TAIL"),
            ("losses: what is cut off below is forgotten", "removed[1] += ndtr(begin", "removed[1] += 0 * ndtr(begin"),
            ("losses: what is cut off below counts for less", "added[-2] +=", "added[-1] +="),
            ("losses: bins count for their cheaper end", "np.minimum(share, whole)", "0.0 * whole"),
            ("losses: one step too few", "count * log for log,", "(count - 1) * log for log,"),
            ("losses: epsilon for twice the delta", "allowed = delta - self", "allowed = 2 * delta - self"),
            ("losses: the window is too narrow", "math.ceil(ends[0])", "math.ceil(ends[0] / 3)"),
            (
                "losses: records enter half as often",
                "mixed = (1 - rate) * absent + rate",
                "mixed = (1 - rate) * absent + 0.5 * rate",
            ),
        ],
    ),
    "privacy/remembered.py": (
        "tests/privacy/test_remembered.py",
        [
            ("remembered: searches are not told apart", "{_version()} {_plain(search)!r}", "{_version()}"),
            ("remembered: code is not told apart", "{_version()} {_plain", "{_plain"),
        ],
    ),
    "experiment/lifetime.py": (
        "tests/experiment/test_lifetime.py tests/experiment/test_lost_journals.py",
        [
            ("runs: one under way has spent little yet", 'if row.state == "stopped" and not lost:', "if not lost:"),
            ("runs: one without its files spent nothing", 'if row.state == "stopped" and not lost:', "if True:"),
            (
                "runs: one with a damaged journal spent nothing",
                "journal=False)), True",
                "journal=False)), lost",
            ),
            ("runs: files that were gone when a run is removed", "(lost or not store", "(not store"),
            ("runs: one that never began has lost its files", "row.begun is not False and (", "True and ("),
            ("runs: one that goes on has lost its journal", "if went_on(row, store):", "if False:"),
            ("runs: promises cost nothing", '+ sum(one["promised"][0]', '+ 0 * sum(one["promised"][0]'),
            ("runs: all observers are outsiders", 'spent["mu"][VIEWS.index(view)]', 'spent["mu"][0]'),
            ("runs: all observers are the server", 'spent["mu"][VIEWS.index(view)]', 'spent["mu"][-1]'),
            ("runs: a record moves its client's share by its bound only", "1 / (2 * mu)", "1 / mu"),
            ("runs: noise for records protects clients", '== "client" else None for run', '== "client" else 0 for run'),
            ("runs: what left bare costs records nothing", "return (_recipe(INFINITE),)", "return ()"),
            ("runs: a limit does not bind methods", "mu <= most * (1 + 1e-9)", "True"),
            ("runs: people are known by equal files alone", "same_people(row.people, people)", "row.people == people"),
        ],
    ),
    "experiment/journal.py": (
        "tests/experiment/test_journal.py tests/experiment/test_lost_journals.py",
        [
            (
                "journal: one that is gone had no rows",
                "        if begun:\n            raise",
                "        if False:\n            raise",
            ),
            ("journal: an emptied one had no rows", "if begun and not end:", "if False:"),
            ("journal: what is owed is dropped", "_write(path, previous, self._owed)", "_write(path, previous, [])"),
        ],
    ),
    "parts/averaging.py": (
        "tests/parts/test_averaging.py",
        [("averages: all rounds count alike", "(LATER + 1) / (LATER + number)", "1 / number")],
    ),
    "parts/blending.py": (
        "tests/parts/test_blending.py tests/test_blend.py",
        [("blend: the mean is not adjusted", "found[[ADJUSTED, AVERAGED_ADJUSTED]]", "found[[ADJUSTED]]")],
    ),
    "blend.py": (
        "tests/test_blend.py",
        [
            (
                "blend: the mean is judged by the last model",
                "said[AVERAGED_ADJUSTED] = said[AVERAGED]",
                "said[AVERAGED_ADJUSTED] = said[ADJUSTED]",
            ),
            ("blend: everybody has the first cluster's models", "message[name][mine]", "message[name][mine * 0]"),
        ],
    ),
    "server.py": (
        "tests/test_blend.py",
        [("server: a resumed run begins its mean anew", "else books.restored.averaged", "else None")],
    ),
    "flower/carrier.py": (
        "tests/flower/test_carrier.py",
        [
            (
                "carrier: a message that a dead site took is waited for",
                "if connections.get(node) != self._connections.get(node):",
                "if False:",
            )
        ],
    ),
    "experiment/books.py": (
        "tests/experiment/test_lost_journals.py",
        [("books: nobody says that there is a journal", "if not row.begun:", "if False:")],
    ),
    "privacy/possibilities.py": (
        "tests/privacy/test_possibilities.py",
        [
            ("possibilities: the cheapest of a run", "np.max([_upper", "np.min([_upper"),
            ("possibilities: the cheaper direction", "max(losses.epsilon(delta) for", "min(losses.epsilon(delta) for"),
            (
                "possibilities: equal runs count once",
                "together(masses, list(kinds.values())",
                "together(masses, [1] * len(kinds)",
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
    "data/own.py": (
        "tests/data/test_schema.py",
        [("counts of raw records are no disclosure", "        + tuple(counted),", "        + (),")],
    ),
    "report/statement.py": (
        "tests/deploy/test_tables.py",
        [("a deployment on the default data", "if simulated else AT_SITES", "if True else AT_SITES")],
    ),
    "experiment/budgeting.py": (
        "tests/deploy/test_agreement.py tests/deploy/test_terms.py",
        [
            ("published noise is not looked up", "if published:", "if False:"),
            ("sites' shares are ignored", ", experiment.colluders, calibration.shares)", ", experiment.colluders)"),
            (
                "whole numbers are calibrated as floats",
                "multiplier = calibration.multiplier(epsilon, delta)",
                "multiplier = multiplier_for(epsilon, delta, schedule.turns)",
            ),
        ],
    ),
    "data/people.py": (
        "tests/data/test_people.py",
        [
            ("people: strangers are the same", "ALIKE = 0.6", "ALIKE = 0.45"),
            ("people: only equal sketches are the same", "ALIKE = 0.6", "ALIKE = 1.0"),
        ],
    ),
    "privacy/ledger.py": (
        "tests/privacy/test_ledger.py",
        [
            ("nothing is charged", "self.spent[:, clients] += costs", "self.spent[:, clients] += 0.0"),
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
            ("what a client paid is not added to its records'", "mu = 2 * math.sqrt(float(spent[client]))", "mu = 0.0"),
            ("a record moves its client's share by its bound only", "mu = 2 * math.sqrt", "mu = math.sqrt"),
            (
                "noise for records protects clients",
                "math.inf if self._histories else math.sqrt(float(row",
                "math.sqrt(float(row",
            ),
            ("noise from a known seed counts", "if allowance.known else charge", "if False else charge"),
            ("a promise holds at any delta", "or left < 0 or", "or"),
            ("a promise is a Gaussian's where records are replaced", "if not at or any(self.recipes()):", "if True:"),
            ("rows are not chained", "return hashlib.sha256(previous +", "return hashlib.sha256("),
        ],
    ),
    "privacy/accountant.py": (
        "tests/privacy/test_accountant.py",
        [
            ("epsilon too small by a tenth", "return float(root)", "return 0.9 * float(root)"),
        ],
    ),
    "privacy/plan.py": (
        "tests/privacy/test_plan.py",
        [
            ("a vacuous delta passes", "if delta >= 1 / units:", "if False:"),
        ],
    ),
    "message.py": (
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
    "method.py": (
        "tests/test_no_privacy.py tests/test_contract.py",
        [
            ("nothing is protected", 'if self.privacy == "dp" else', 'if self.privacy == "never" else'),
            ("everything is protected", 'if self.privacy == "dp" else', "if True else"),
        ],
    ),
    "client.py": (
        "tests/test_own_methods.py tests/test_contract.py",
        [
            ("a step writes public states", "if stolen:", "if False:"),
            ("a step keeps things by its data", "if self._keeps.setdefault(step, keeps) != keeps:", "if False:"),
            ("public states that nobody learned", "if sorted(learned[-1]) != self.public_names:", "if False:"),
            (
                "bounds follow what a step does to its memory",
                "{name: me[name].to(self.device, copy=True) for name in self.public_names}",
                "{name: me[name] for name in self.public_names}",
            ),
        ],
    ),
    "privacy/audit/bounds.py": (
        "tests/privacy/audit/test_bounds.py",
        [
            ("rates as they came", "float(beta.isf(risk, errors + 1, trials - errors))", "errors / trials"),
            ("one risk for two rates", "risk = (1 - confidence) / 2", "risk = 1 - confidence"),
            ("half of delta", "2 * canaries * delta", "canaries * delta"),
            ("all guesses are right", "(1 - confidence) * right / canaries", "(1 - confidence) * guesses / canaries"),
            ("the mean without its error", "low = mu - float(", "low = mu - 0 * float("),
        ],
    ),
    "privacy/audit/findings.py": (
        "tests/privacy/audit/test_bounds.py tests/privacy/audit/test_findings.py",
        [
            ("what chose the threshold counts", "cls(inside[first[0] :], outside[first[1] :]", "cls(inside, outside"),
            ("another run's claim is attacked", "self.claimed = max(self.claimed, attack.paid)", "pass"),
            ("what refutes is not named", "(self._refutes(one), one.bound)", "one.bound"),
        ],
    ),
    "privacy/audit/canaries.py": (
        "tests/privacy/audit/test_false_claims.py",
        [
            ("a canary within its bound", "LOUD = 3.0", "LOUD = 1.0"),
            ("a canary in one tensor", "edges |= set(", "edges.copy().update("),
            ("a canary whose sign stays", "-1.0 if count % 2 else 1.0", "1.0"),
            ("no release is attacked alone", "if len(names) > 1 else {}", "if False else {}"),
            ("everybody sees what the server sees", "if sees is None:", 'sees = "rows"\n            if sees is None:'),
        ],
    ),
    "privacy/audit/draws.py": (
        "tests/privacy/audit/test_false_claims.py",
        [
            ("too little noise is overlooked", "if too_small(total, count) < RISK:", "if False:"),
            ("noise may be missing somewhere", "where = _missing(passages)", 'where = ""'),
            ("noise may be missing on an entry", "counted += np.stack([squares, leaves])", "counted += 0"),
            ("long draws are not compared", "if worst > min(limit, 0.95)", "if False"),
            (
                "entries of a draw are not compared",
                "_correlated(stacked) or _repeated(stacked)",
                "_correlated(stacked)",
            ),
            ("draws of two releases are not compared", "    yield from _among_kinds(runs)", "    yield from ()"),
        ],
    ),
    "privacy/audit/conformance.py": (
        "tests/privacy/audit/test_false_claims.py tests/privacy/audit/test_cheats.py",
        [
            ("coins are not looked at", "    if not tosses:", "    if tosses:"),
            ("a missing row is overlooked", "        if missing:", "        if False:"),
            (
                "a row pays for any number of messages",
                "count - times[number, name])",
                "count * (not times[number, name]))",
            ),
            ("gradients are not counted", "if count > counted.get(key, 0)}", "if False}"),
            ("prices are not compared", "if row is not None and passage.price", "if row is None and passage.price"),
            ("bytes are not looked at", "            if needed > each:", "            if False:"),
            ("nothing is rehearsed", "understudy.rehearse(run).items()", "{}.items()"),
        ],
    ),
    "privacy/audit/rehearsal.py": (
        "tests/privacy/audit/test_cheats.py tests/privacy/audit/test_false_claims.py",
        [
            ("the same records again", "data=other_records(prepared.data)", "data=prepared.data"),
            (
                "whom the script asks is not compared",
                "!= (name, [int(one) for one in who])",
                "!= (name, list(asked.question.clients))",
            ),
            ("messages are not compared", "if digest(asked.question.message) != digest(message):", "if False:"),
            ("the end is not compared", "if kept[0] != before[0] or any(", "if False and any("),
            ("a script may end earlier", "        if self._left:\n", "        if False:\n"),
            ("noise is not compared", "not (same(noise, passage.deviations) and bound == passage.bound)", "False"),
            ("what has no noise is not compared", "and not same(rows.cpu(), before)", "and False"),
            ("lengths are not compared", "if rows.shape != before.shape or rows.dtype != before.dtype:", "if False:"),
            ("public states are not compared", "if any(not same(states[name], rows)", "if any(False"),
            ("gradients that are not taken are overlooked", "left = self._known.keys() - self.taken", "left = ()"),
            ("rehearsed where the run was recorded", 'if not hasattr(os, "fork"):', "if True:"),
        ],
    ),
    "privacy/audit/one_run.py": (
        "tests/privacy/audit/test_one_run.py",
        [
            ("always the first of several models", "place = int((last - model).norm(dim=1).argmin())", "place = 0"),
            ("canaries join every round", "if self.client not in question.clients:", "if False:"),
            ("canaries take anybody's turns", "canaries.target_of(first), number", "0, number"),
            ("canaries tell of each other", "if parts > 1 and size <= UNTANGLED", "if False"),
            (
                "canaries know their coins",
                "torch.from_numpy(self.coins.astype(np.float32)) @ bounded",
                "0 * bounded[0]",
            ),
        ],
    ),
    "privacy/audit/watching.py": (
        "tests/privacy/audit/test_cheats.py",
        [
            (
                "the price of the first block",
                'price += (bound / deviation) ** 2 if deviation else float("inf")',
                "price = price or (bound / deviation) ** 2",
            )
        ],
    ),
    "privacy/audit/records.py": (
        "tests/privacy/audit/test_false_claims.py",
        [
            ("a canary record within its threshold", "max(LONG, LOUD * 2 * float(clip))", "float(clip) / 2"),
            ("gradients that passed are not counted", "[kind] += 1", "[kind] = 1"),
        ],
    ),
    "transcript.py": (
        "tests/privacy/audit/test_false_claims.py",
        [("single messages that are read reach nobody", ' or (release, "rows") in self.read', "")],
    ),
    "asking.py": (
        "tests/test_own_methods.py tests/test_server.py",
        [
            ("means of records as often as anybody likes", 'if release.unit == "record" or release', "if release"),
            ("gradients under two names", "taken = same_turns(self._steps, step, name)", "taken = {name}"),
            ("a smaller cohort is used", "len(clients) < noise.minimum_cohort", "False"),
            ("the ledger is not asked", "self._books.charge(rows)", "pass"),
            ("a client may be asked twice", "if len(set(clients)) < len(clients):", "if False:"),
            ("bounds that tell of single messages are free", "if bounds & set(self._state_names) or", "if"),
            ("states that tell of single messages are free", "or (summed and self._state_names):", ":"),
            ("clients are asked beyond their budget", "if (times >= most).any():", "if False:"),
            ("one number for all questions", "self.count += 1", "self.count += 0"),
        ],
    ),
    "replies.py": (
        "tests/test_own_methods.py",
        [
            ("single messages are read for nothing", "self._books.ledger.expose(row)", "[]"),
            ("a mean of masks exposes nothing", "if not self._releases[release].summed:", "if False:"),
            ("states are read for nothing", 'elif tells == "everything":', "elif False:"),
        ],
    ),
    "data/selection.py": (
        "tests/data/test_public.py",
        [
            ("owners' records are public", "if held_out and dataset.owner is not None:", "if False:"),
            (
                "public records that are a client's are not told",
                "*dataset.disclosed, _told(shared, len(other.y))",
                "*dataset.disclosed",
            ),
        ],
    ),
    "methods/fedper_record.py": (
        "tests/methods/test_personal_rivals.py",
        [
            ("personal layers leave", "(model - start) * shared", "model - start"),
            ("personal layers are the server's", ', me["model"])', ', message["global"])'),
        ],
    ),
    "methods/fedprox_record.py": (
        "tests/methods/test_personal_rivals.py",
        [
            ("clients are pushed away from the global model", "pull_to(start, self.mu)", "pull_to(start, -self.mu)"),
            ("clients are pulled to zero", "pull_to(start, self.mu)", "pull_to(0 * start, self.mu)"),
        ],
    ),
    "methods/ditto_record.py": (
        "tests/methods/test_personal_rivals.py",
        [
            (
                "personal models are pushed away from the global one",
                "pull_to(received, self.strength)",
                "pull_to(received, -self.strength)",
            )
        ],
    ),
    "methods/mr_mtl_record.py": (
        "tests/methods/test_personal_rivals.py",
        [
            ("what is sent is not the way from the mean", "model - mean", "model - start"),
            ("the mean draws at strength zero", "self.strength, self.penalty", "self.strength + 1, self.penalty"),
        ],
    ),
    "methods/dp_ifca.py": (
        "tests/methods/test_clustered.py",
        [("models move by a k-th of what is due", "self.clusters * got.mean", "got.mean")],
    ),
    "methods/ifca.py": (
        "tests/methods/test_clustered.py",
        [
            ("clients move models that they did not choose", "chosen == number", "chosen >= number"),
            ("choices of those who are absent", "torch.as_tensor(list(got.who))", "torch.arange(len(chosen))"),
        ],
    ),
    "methods/cfl.py": (
        "tests/methods/test_clustered.py",
        [("clusters are parted that nobody pulls apart", "longest > self.pulling * largest", "True")],
    ),
    "methods/dp_scaffold.py": (
        "tests/methods/test_scaffold.py",
        [("variates of those who take part alone", " * (len(got.who) / fed.schedule.clients)", "")],
    ),
    "methods/fedaddp.py": (
        "tests/methods/test_client_level.py",
        [
            ("personal parameters are not held", "self.lambda1 / 2", "0.0"),
            ("the shared update flees its bound", "self.lambda2 / 2", "-self.lambda2 / 2"),
            ("the published bound without beta", "self.beta * piece.norm()", "piece.norm()"),
        ],
    ),
}
MUTANTS = [Mutant(*one[:1], file, *one[1:], tests) for file, (tests, ones) in BY_FILE.items() for one in ones]


def killed(mutant: Mutant) -> bool:
    """Whether the tests fail on a copy of the project with one replacement."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        ignored = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=ignored)
        target = copy / "sordino" / mutant.file
        target.write_text(target.read_text().replace(mutant.before, mutant.after, 1))
        return any(_tests_fail(copy, tests.split()) for tests in (mutant.tests, *LATER))


def _tests_fail(copy: Path, tests: list[str]) -> bool:
    """Whether some of the tests of a copy of the project fail, in a fork of this process."""
    process = multiprocessing.get_context("fork").Process(target=_tested, args=(copy, tests))
    process.start()
    process.join()
    return process.exitcode == pytest.ExitCode.TESTS_FAILED


def _tested(copy: Path, tests: list[str]) -> None:
    """Run tests of a copy of the project in this process, which ends with their exit code."""
    os.chdir(copy)
    sys.path[:0] = [str(copy)]
    os.environ["PYTHONPATH"] = str(copy)
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    torch.set_num_threads(1)
    os._exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]))


def main() -> None:
    """Try each mutant and tell which survived."""
    words = sys.argv[1:]
    chosen = [one for one in MUTANTS if not words or any(word in one.name or word in one.file for word in words)]
    for one in chosen:
        if one.before not in (ROOT / "sordino" / one.file).read_text():
            sys.exit(f"{one.name}: {one.file} no longer holds {one.before!r}; bring the mutant up to date.")
    for heavy in HEAVY:  # once, and not in each of a hundred forks
        importlib.import_module(heavy)
    begin, survivors = time.monotonic(), []
    with ThreadPoolExecutor(2) as pool:
        for one, caught in zip(chosen, pool.map(killed, chosen), strict=True):
            print(f"{'caught  ' if caught else 'SURVIVED'}  {one.file}: {one.name}", flush=True)
            if not caught:
                survivors.append(one.name)
    minutes = (time.monotonic() - begin) / 60
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants caught in {minutes:.0f} minutes")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
