"""The secure sum: what opens is the survivors' sum and nothing else, whatever a server tells whom."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

pytest.importorskip("cryptography", reason="the secure sum needs `cryptography`: pip install 'sordino[deploy]'")

from sordino.deploy.protocol import integer_rows, secret_sharing, secure_sum
from sordino.deploy.protocol.secure_sum import Cohort, Masker, MaskingError, Opening, Party, open_sum
from sordino.errors import UserError
from sordino.federation.message import Each
from sordino.privacy.budget.allowance import Allowance, Noise
from sordino.privacy.gate import Gate
from sordino.privacy.integers import CLIENTS
from sordino.privacy.mechanism import MECHANISMS
from sordino.privacy.noise import Secure, Seeded
from sordino.privacy.release import Public, Update

ASK = b"ask".ljust(32, b".")


@dataclass
class Group:
    """Sites of one cohort that have masked their numbers."""

    cohort: Cohort
    maskers: dict[bytes, Masker]
    values: dict[bytes, np.ndarray]
    sent: dict[bytes, secure_sum.MaskedVector]

    def shares_for(self, receiver: bytes, senders: Sequence[bytes]) -> dict[bytes, bytes]:
        """What an honest server forwards."""
        return {sender: self.sent[sender].shares[receiver] for sender in senders}

    def openings(self, survivors: Sequence[bytes]) -> dict[bytes, Opening]:
        return {one: self.maskers[one].make_opening(survivors, self.shares_for(one, survivors)) for one in survivors}

    def sum(self, survivors: Sequence[bytes]) -> np.ndarray:
        vectors = {one: self.sent[one].vector for one in survivors}
        return open_sum(self.cohort, vectors, survivors, self.openings(survivors))


def names(count: int) -> list[bytes]:
    return [bytes([65 + number]) * 32 for number in range(count)]


def group(sites: int, minimum: int, entries: int = 5, bits: int = 32, ask: bytes = ASK, seed: int = 0) -> Group:
    keys = {name: secure_sum.new_key() for name in names(sites)}
    cohort = Cohort(ask, tuple(Party(name, secure_sum.public_key(key)) for name, key in keys.items()), minimum)
    maskers = {name: Masker(cohort, name, key) for name, key in keys.items()}
    random = np.random.default_rng(seed)
    values = {name: random.integers(-(2**20), 2**20, entries) for name in keys}
    sent = {name: maskers[name].mask(values[name], bits) for name in keys}
    return Group(cohort, maskers, values, sent)


# ---- what opens


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_sum_of_whoever_survives_opens(data: st.DataObject) -> None:
    sites = data.draw(st.integers(2, 7))
    minimum = data.draw(st.integers(1, sites))
    made = group(sites, minimum, data.draw(st.integers(0, 40)), data.draw(st.sampled_from([32, 64])))
    survivors = data.draw(st.lists(st.sampled_from(names(sites)), min_size=minimum, unique=True))
    assert made.sum(survivors).tolist() == sum(made.values[one] for one in survivors).tolist()


@pytest.mark.parametrize("bits", [32, 64])
def test_numbers_go_round_at_the_width_s_end(bits: int) -> None:
    made = group(3, 3)
    large = 2 ** (bits - 2)
    values = [np.array([large, -large]), np.array([large - 1, -large]), np.array([0, 0])]
    sent = {name: made.maskers[name].mask(one, bits) for name, one in zip(made.maskers, values, strict=True)}
    made = replace(made, sent=sent)
    assert made.sum(names(3)).tolist() == [2 ** (bits - 1) - 1, -(2 ** (bits - 1))]


def test_long_vectors_are_masked_with_one_stream() -> None:
    entries = 3 * secure_sum.CHUNK // 4 + 7
    made = group(3, 2, entries)
    assert (made.sum(names(3)[:2]) == made.values[b"A" * 32] + made.values[b"B" * 32]).all()
    mask = np.zeros(entries, dtype="<u4")
    secure_sum.add_mask(mask, bytes(32), +1)
    assert len(np.unique(mask)) > 0.99 * entries  # a chunk that came twice would halve it
    secure_sum.add_mask(mask, bytes(32), -1)
    assert not mask.any()


def test_the_mask_is_aes_256_in_counter_mode_from_zero() -> None:
    """NIST SP 800-38A's key, whose first two blocks with a counter of zero are those of the block cipher."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = bytes(range(32))
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    stream = b"".join(block.update(number.to_bytes(16, "big")) for number in range(4))
    mask = np.zeros(16, dtype="<u4")
    secure_sum.add_mask(mask, key, +1)
    assert mask.tobytes() == stream


def test_a_threshold_of_openings_is_enough_where_nobody_dropped_out() -> None:
    made = group(5, 3)
    everybody = names(5)
    openings = made.openings(everybody)
    vectors = {one: made.sent[one].vector for one in everybody}
    for chosen in itertools.combinations(everybody, 3):
        total = open_sum(made.cohort, vectors, everybody, {one: openings[one] for one in chosen})
        assert total.tolist() == sum(made.values.values()).tolist()
    with pytest.raises(MaskingError, match="2 of 5 survivors have answered"):
        open_sum(made.cohort, vectors, everybody, {one: openings[one] for one in everybody[:2]})


def test_where_somebody_dropped_out_all_survivors_must_answer() -> None:
    made = group(5, 3)
    survivors = names(5)[1:]
    openings = made.openings(survivors)
    vectors = {one: made.sent[one].vector for one in survivors}
    del openings[survivors[0]]
    with pytest.raises(MaskingError, match="3 of 4"):
        open_sum(made.cohort, vectors, survivors, openings)


# ---- what does not


def test_masked_messages_are_uniform() -> None:
    """Of zeros: the lowest and the highest byte of 65,536 numbers; a right mask fails once in a million times."""
    made = group(3, 3)
    for bits in (32, 64):
        vector = made.maskers[b"A" * 32].mask(np.zeros(2**16, dtype=np.int64), bits).vector
        for shift in (0, bits - 8):
            counts = np.bincount((vector >> vector.dtype.type(shift)) & vector.dtype.type(255), minlength=256)
            assert chisquare(counts).pvalue > 1e-6
        assert abs(np.corrcoef(vector[1:].astype(float), vector[:-1].astype(float))[0, 1]) < 6 / 2**8


def test_even_whoever_knows_all_pairwise_masks_sees_uniform_numbers() -> None:
    """A late message stays masked by b: without the pairwise masks two messages of zeros still share nothing."""
    made = group(3, 3)
    masker, zeros = made.maskers[b"A" * 32], np.zeros(2**14, dtype=np.int64)
    found = []
    for _ in range(2):
        vector = masker.mask(zeros, 32).vector.copy()
        for other in names(3)[1:]:
            secure_sum.add_mask(vector, masker._seed(other), -masker._sign(other))
        assert chisquare(np.bincount(vector & 255, minlength=256)).pvalue > 1e-6
        found.append(vector)
    assert (found[0] == found[1]).mean() < 0.01


def test_shares_below_the_threshold_open_nothing() -> None:
    made = group(4, 3)
    everybody = names(4)
    openings = {one: made.openings(everybody)[one] for one in everybody[:2]}
    shares = {1 + made.cohort.place(one): int.from_bytes(o.shares[everybody[3]], "big") for one, o in openings.items()}
    with pytest.raises(secret_sharing.SharingError):
        secret_sharing.combine(shares, 3)
    wrong = secret_sharing.combine(shares, 2)  # what a server gets that pretends
    vector = made.sent[everybody[3]].vector.copy()
    secure_sum.add_mask(vector, wrong.to_bytes(32, "big"), -1)
    for other in everybody[:3]:
        masker = made.maskers[everybody[3]]
        secure_sum.add_mask(vector, masker._seed(other), -masker._sign(other))
    assert not (vector.view("<i4") == made.values[everybody[3]]).any()


# ---- a lying server, by brute force


@dataclass(frozen=True)
class Answers:
    """What a site has told in answer to one list of survivors, as sets of places, in bits."""

    shares: int
    seeds: int


def answers_of(made: Group, me: int) -> list[Answers]:
    """What the real code gives for every list of survivors that it accepts, and for none at all."""
    everybody, found = names(len(made.maskers)), [Answers(0, 0)]
    for size in range(1, len(everybody) + 1):
        for survivors in itertools.combinations(everybody, size):
            try:
                opening = made.maskers[everybody[me]].make_opening(survivors, made.shares_for(everybody[me], survivors))
            except MaskingError:
                continue
            bits = [sum(1 << everybody.index(one) for one in told) for told in (opening.shares, opening.seeds)]
            found.append(Answers(*bits))
    return found


def smallest_opened(sites: int, threshold: int, colluders: int, options: list[list[Answers]]) -> int:
    """How many honest messages are in the smallest sum that opens, over all choices of what is shown to whom.

    The first `colluders` sites tell everything. A set of honest sites opens if each one's own mask does and every mask
    that one of them has in common with an honest site outside is known.
    """
    honest = range(colluders, sites)
    sets = (one for size in range(1, len(honest) + 1) for one in itertools.combinations(honest, size))
    return next(len(inside) for inside in sets if can_open(inside, honest, threshold - colluders, options))


def can_open(inside: tuple[int, ...], honest: range, needed: int, options: list[list[Answers]]) -> bool:
    """Whether some choice of what is shown to whom opens the sum of the sites `inside`."""
    within, without = (sum(1 << one for one in honest if (one in inside) == mine) for mine in (True, False))
    # Of what a site tells only this matters; choices that do not differ in it are tried once.
    told = [
        sorted({(one.shares & within, one.seeds & (without if site in inside else within)) for one in options[site]})
        for site in honest
    ]
    shape = [len(one) for one in told]
    shares, seeds = (
        {
            site: np.array([one[part] for one in told[place]], dtype=np.int8).reshape(
                [-1 if axis == place else 1 for axis in range(len(shape))]
            )
            for place, site in enumerate(honest)
        }
        for part in (0, 1)
    )
    possible = np.ones(shape, dtype=bool)
    for one in inside:
        counted = np.zeros(shape, dtype=np.int8)
        for site in honest:
            counted = counted + ((shares[site] >> one) & 1)
        possible &= counted >= needed
        for other in set(honest) - set(inside):
            possible &= (((seeds[one] >> other) | (seeds[other] >> one)) & 1).astype(bool)
    return bool(possible.any())


def cases() -> Iterator[tuple[int, int, int]]:
    for sites in range(2, 7):
        for colluders in range(3):
            for minimum in range(1, sites + 1):
                if secure_sum.honest_shares(sites, minimum, colluders) >= 2:
                    yield sites, minimum, colluders


@pytest.mark.parametrize(("sites", "minimum", "colluders"), list(cases()))
def test_no_sum_of_fewer_than_h_messages_opens_whatever_a_server_shows_to_whom(
    sites: int, minimum: int, colluders: int
) -> None:
    made = group(sites, minimum, entries=1)
    smallest = smallest_opened(sites, minimum, colluders, [answers_of(made, site) for site in range(sites)])
    assert smallest >= secure_sum.honest_shares(sites, minimum, colluders)


@pytest.mark.parametrize(("sites", "minimum", "threshold"), [(4, 2, 2), (5, 3, 3), (6, 3, 3), (4, 3, 2), (6, 4, 3)])
def test_a_smaller_cohort_or_threshold_would_show_single_messages(sites: int, minimum: int, threshold: int) -> None:
    """Where 2 U_min < n + 2, and where t is one less than U_min."""
    made = group(sites, minimum, entries=1)
    assert smallest_opened(sites, threshold, 0, [answers_of(made, site) for site in range(sites)]) == 1


@pytest.mark.parametrize(
    ("sites", "colluders", "least"), [(2, 0, 2), (3, 0, 3), (4, 0, 3), (5, 0, 4), (50, 0, 26), (10, 2, 7), (3, 1, 3)]
)
def test_the_rule_for_the_smallest_cohort(sites: int, colluders: int, least: int) -> None:
    secure_sum.check_cohort(sites, least, colluders)
    assert secure_sum.honest_shares(sites, least, colluders) in (2, 3)
    with pytest.raises(MaskingError, match=f"set minimum_cohort to {least}"):
        secure_sum.check_cohort(sites, least - 1, colluders)


def test_cohorts_with_which_no_sum_hides_anything_are_refused() -> None:
    assert secure_sum.honest_shares(50, 45, 0) == 40
    assert secure_sum.honest_shares(50, 45, 0, active_server=False) == 45
    secure_sum.check_cohort(5, 2, 0, active_server=False)
    with pytest.raises(MaskingError, match="have 3 sites or more"):
        secure_sum.check_cohort(2, 2, 1)
    with pytest.raises(MaskingError, match="have 3 sites or more"):
        secure_sum.check_cohort(2, 2, 1, active_server=False)
    for minimum in (0, 6):
        with pytest.raises(MaskingError, match="must be between 1 and 5"):
            secure_sum.check_cohort(5, minimum, 0)


# ---- what a site refuses


def refused(made: Group, survivors: Sequence[bytes], match: str) -> None:
    with pytest.raises(MaskingError, match=match):
        made.maskers[b"A" * 32].make_opening(
            survivors, made.shares_for(b"A" * 32, [s for s in survivors if s in made.sent])
        )


def test_lists_of_survivors_that_a_site_refuses() -> None:
    made = group(5, 3)
    everybody = names(5)
    refused(made, everybody[1:], "This site is not among the survivors")
    refused(made, everybody[:2], "2 survivors, but 3 are needed")
    refused(made, [*everybody[:3], everybody[0]], "twice")
    refused(made, [*everybody[:3], b"Z" * 32], "not in the cohort")
    with pytest.raises(MaskingError, match="share is missing"):
        made.maskers[everybody[0]].make_opening(everybody, made.shares_for(everybody[0], everybody[:4]))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 200), st.integers(1, 255))
def test_a_share_that_was_altered_is_refused(place: int, change: int) -> None:
    made = SMALL
    sealed = bytearray(made.sent[b"B" * 32].shares[b"A" * 32])
    sealed[place % len(sealed)] ^= change
    with pytest.raises(MaskingError, match="altered"):
        made.maskers[b"A" * 32].decrypt_share(b"B" * 32, bytes(sealed))


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_in_place_of_a_share_are_refused(content: bytes) -> None:
    with pytest.raises(MaskingError):
        SMALL.maskers[b"A" * 32].decrypt_share(b"B" * 32, content)


def test_a_share_is_for_one_ask_one_sender_and_one_receiver() -> None:
    made = SMALL
    mine = made.maskers[b"A" * 32]
    assert mine.decrypt_share(b"B" * 32, made.sent[b"B" * 32].shares[b"A" * 32]).note == b""
    wrong = [
        (b"C" * 32, made.sent[b"B" * 32].shares[b"A" * 32]),
        (b"B" * 32, made.sent[b"B" * 32].shares[b"C" * 32]),
        (b"B" * 32, made.sent[b"A" * 32].shares[b"B" * 32]),
    ]
    for sender, sealed in wrong:
        with pytest.raises(MaskingError, match="altered on its way, or belongs to another question"):
            mine.decrypt_share(sender, sealed)
    other = Masker(replace(made.cohort, question=b"other".ljust(32)), b"A" * 32, KEY)
    with pytest.raises(MaskingError, match="another question"):
        other.decrypt_share(b"B" * 32, made.sent[b"B" * 32].shares[b"A" * 32])
    assert other._seed(b"B" * 32) != mine._seed(b"B" * 32)


def test_secrets_that_are_agreed_on_once_serve_every_question_with_keys_of_its_own() -> None:
    keys = {name: secure_sum.new_key() for name in names(3)}
    parties = tuple(Party(name, secure_sum.public_key(key)) for name, key in keys.items())
    agreed: dict[bytes, dict[bytes, bytes]] = {name: {} for name in keys}
    seeds, own = set(), set()
    for ask in (b"first".ljust(32), b"second".ljust(32)):
        cohort = Cohort(ask, parties, 3)
        maskers = {name: Masker(cohort, name, key, agreed[name]) for name, key in keys.items()}
        values = {name: np.arange(4) + place for place, name in enumerate(keys)}
        sent = {name: maskers[name].mask(values[name], 32) for name in keys}
        made = Group(cohort, maskers, values, sent)
        assert made.sum(names(3)).tolist() == sum(values.values()).tolist()
        seeds |= {maskers[one]._seed(other) for one in keys for other in keys if one != other}
        shares = [maskers[one].decrypt_share(b"A" * 32, sent[b"A" * 32].shares[one]).value for one in keys]
        own.add(secret_sharing.combine(dict(enumerate(shares, 1)), 3))
    assert [len(found) for found in agreed.values()] == [3, 3, 3]  # one with itself, for its own share
    assert len(seeds) == 6  # three pairs, two questions
    assert len(own) == 2  # the mask of a site's own is fresh


def test_another_key_of_a_site_has_another_secret() -> None:
    """A secret that was agreed on with one key must not serve for another that a server shows under the same name."""
    mine, agreed = secure_sum.new_key(), {}
    seeds = set()
    for _ in range(2):
        theirs = secure_sum.public_key(secure_sum.new_key())
        cohort = Cohort(ASK, (Party(b"A" * 32, secure_sum.public_key(mine)), Party(b"B" * 32, theirs)), 2)
        masker = Masker(cohort, b"A" * 32, mine, agreed)
        assert masker._seed(b"B" * 32) == Masker(cohort, b"A" * 32, mine)._seed(b"B" * 32)
        seeds.add(masker._seed(b"B" * 32))
    assert len(seeds) == 2


def test_notes_reach_their_receiver_only() -> None:
    made = SMALL
    sent = made.maskers[b"A" * 32].mask(np.zeros(3), 32, {b"B" * 32: b"ledger head"})
    assert made.maskers[b"B" * 32].decrypt_share(b"A" * 32, sent.shares[b"B" * 32]).note == b"ledger head"
    assert made.maskers[b"C" * 32].decrypt_share(b"A" * 32, sent.shares[b"C" * 32]).note == b""
    assert b"ledger head" not in sent.shares[b"B" * 32]


def test_both_sides_agree_on_a_seed_and_no_two_pairs_do() -> None:
    made = group(4, 3)
    seeds = {}
    for one, other in itertools.permutations(names(4), 2):
        seeds[one, other] = made.maskers[one]._seed(other)
    assert all(seeds[one, other] == seeds[other, one] for one, other in seeds)
    assert len(set(seeds.values())) == 6


def test_a_second_message_has_other_masks_and_other_keys() -> None:
    masker, zeros = SMALL.maskers[b"A" * 32], np.zeros(64)
    first, second = masker.mask(zeros, 32), masker.mask(zeros, 32)
    assert not (first.vector == second.vector).any()
    assert not {share[:32] for share in first.shares.values()} & {share[:32] for share in second.shares.values()}


def test_cohorts_that_are_none() -> None:
    parties = SMALL.cohort.parties
    for wrong, match in (
        ((*parties, parties[0]), "a site twice"),
        ((*parties, Party(b"Z" * 32, parties[0].key)), "a key twice"),
    ):
        with pytest.raises(MaskingError, match=match):
            Cohort(ASK, wrong, 2)
    with pytest.raises(MaskingError, match="cannot give at least 4 answers"):
        Cohort(ASK, parties, 4)
    with pytest.raises(MaskingError, match="not in the cohort"):
        Masker(SMALL.cohort, b"Z" * 32, KEY)
    with pytest.raises(MaskingError, match="another key"):
        Masker(SMALL.cohort, b"B" * 32, KEY)


@pytest.mark.parametrize("key", [bytes(32), (1).to_bytes(32, "little"), bytes(31)], ids=["zero", "one", "short"])
def test_a_key_that_would_give_a_known_secret_is_refused(key: bytes) -> None:
    mine = SMALL.cohort.parties[0]
    cohort = Cohort(ASK, (mine, Party(b"B" * 32, key)), 2)
    with pytest.raises(MaskingError, match="no secret can be agreed on"):
        Masker(cohort, mine.identity, KEY).mask(np.zeros(2), 32)


# ---- what a server refuses


def test_answers_that_open_nothing_are_refused() -> None:
    made = group(4, 3)
    survivors = names(4)[:3]
    good, vectors = made.openings(survivors), {one: made.sent[one].vector for one in survivors}
    first = survivors[0]
    spoilt = {
        "lacks the seed": Opening(good[first].shares, {}),
        "lacks its share": Opening({}, good[first].seeds),
        "not a number below the prime": Opening(dict.fromkeys(survivors, b"\xff" * 32), good[first].seeds),
    }
    for match, opening in spoilt.items():
        with pytest.raises(MaskingError, match=match):
            open_sum(made.cohort, vectors, survivors, {**good, first: opening})
    for wrong in (np.zeros(4, dtype="<u4"), np.zeros(5, dtype="<u8"), np.zeros((5, 1), dtype="<u4")):
        with pytest.raises(MaskingError, match="differ in length or width"):
            open_sum(made.cohort, {**vectors, first: wrong}, survivors, good)
    with pytest.raises(MaskingError, match="incomplete"):
        open_sum(made.cohort, {first: vectors[first]}, survivors, good)
    with pytest.raises(MaskingError, match="unsigned"):
        open_sum(made.cohort, {one: v.astype(float) for one, v in vectors.items()}, survivors, good)


def test_a_wrong_share_is_noticed_where_more_answer_than_are_needed() -> None:
    made = group(4, 3)
    everybody = names(4)
    good, vectors = made.openings(everybody), {one: made.sent[one].vector for one in everybody}
    first = everybody[0]
    shares = {**good[first].shares, first: bytes(32)}
    with pytest.raises(MaskingError, match="do not belong to one secret"):
        open_sum(made.cohort, vectors, everybody, {**good, first: Opening(shares, {})})


KEY = secure_sum.new_key()


def _small() -> Group:
    keys = {name: KEY if name == b"A" * 32 else secure_sum.new_key() for name in names(3)}
    cohort = Cohort(ASK, tuple(Party(name, secure_sum.public_key(key)) for name, key in keys.items()), 3)
    maskers = {name: Masker(cohort, name, key) for name, key in keys.items()}
    values = dict.fromkeys(keys, np.arange(5))
    return Group(cohort, maskers, values, {name: maskers[name].mask(values[name], 32) for name in keys})


SMALL = _small()


def test_releases_of_unequal_noise_are_not_summed() -> None:
    """Whole numbers of sites with other thresholds stand for other things: neither end makes a sum of them."""
    releases, noise = {"update": Update("clip")}, Noise(1.0, "outsider", 3, shares=3)
    gate = Gate(Allowance(noise), Secure(Seeded(0)), MECHANISMS["integers"])
    equal = Public({"clip": 0.5}, range(3), layers=[4])
    assert integer_rows.bits(releases, gate, equal, 3) == 32
    unequal = Public({"clip": Each(torch.tensor([0.5, 0.5, 5.0]))}, range(3), layers=[4])
    total = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(MaskingError, match="not the same for all sites"):
        integer_rows.bits(releases, gate, unequal, 3)
    with pytest.raises(MaskingError, match="not the same for all sites"):
        integer_rows.check_total({"update": total.reshape(1, -1)}, releases, gate, unequal)
    with pytest.raises(UserError, match="different noise stand for different things"):
        gate.mean_of_sum(releases["update"], total, unequal)


def test_a_sum_is_no_longer_than_the_sites_clips_allow() -> None:
    """Three sites' bounds and what noise may add to them, but not ten times that."""
    releases, noise = {"update": Update("clip")}, Noise(1.0, "outsider", 3, shares=3)
    gate = Gate(Allowance(noise), Secure(Seeded(0)), MECHANISMS["integers"])
    public = Public({"clip": 0.5}, range(3), layers=[4])
    grid = float(releases["update"].cover(4, gate.allowance, public).deviations[0, 0]) / CLIENTS.deviation
    honest, lying = (torch.tensor([[round(times * 0.5 / grid), 0, 0, 0]]) for times in (3, 60))
    integer_rows.check_total({"update": honest}, releases, gate, public)
    with pytest.raises(MaskingError, match="longer than the sites' clips allow"):
        integer_rows.check_total({"update": lying}, releases, gate, public)
