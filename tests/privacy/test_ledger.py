"""Epsilon is computed from what really left."""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from sordino.federation.message import Each
from sordino.privacy.accounting.gaussian import attack_accuracy, epsilon_of, mu_of
from sordino.privacy.accounting.sampled_gaussian import record_epsilon, replaced_epsilon
from sordino.privacy.budget.allowance import Allowance, Noise
from sordino.privacy.budget.record_level_plan import RecordNeeds, plan_records
from sordino.privacy.integers import CLIENTS, Gap
from sordino.privacy.ledger import Ledger, Row, number_of_attempt
from sordino.privacy.release import Average, Bare, Charge, Derived, Matrix, Number, Public, ReleaseError, Update
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS

UPDATE = {"update": Update("clip")}
NEEDS = RecordNeeds(matrix_share=0.3, matrices=1, means=1, held_out=0.2)


def charged(rounds: int, who: list[int], noise: Noise, clients: int = 50, releases: dict = UPDATE) -> Ledger:
    ledger = Ledger(clients)
    for number in range(rounds):
        public = Public({"clip": 0.7 + number}, who, layers=[5])
        ledger.charge(releases, number, number, "local", Allowance(noise), public)
    return ledger


def test_views_of_a_shared_out_noise() -> None:
    ledger = charged(100, list(range(50)), Noise(1.0, "outsider", 50))
    delta = 50**-1.1
    assert ledger.epsilon(delta)["outsider"] == pytest.approx(71.21, abs=0.01)
    assert ledger.epsilon(delta)["server"] == pytest.approx(2655, abs=1)
    assert ledger.mu("peer") == pytest.approx(10 * math.sqrt(50 / 49))


def test_views_when_each_message_carries_all_noise() -> None:
    ledger = charged(4, list(range(25)), Noise(2.0, "server", 25))
    assert ledger.mu("server") == pytest.approx(1.0)
    assert ledger.mu("outsider") == pytest.approx(1 / 5)


def test_only_own_participations_are_paid_for() -> None:
    ledger = Ledger(4)
    noise = Noise(1.0, "outsider", 2)
    for number in range(9):
        public = Public({"clip": 1.0}, [0, 1] if number < 7 else [2, 3], layers=[5])
        ledger.charge(UPDATE, number, number, "local", Allowance(noise), public)
    assert ledger.spent[VIEWS.index("outsider")].tolist() == pytest.approx([7, 7, 2, 2])
    assert ledger.mu("outsider") == pytest.approx(math.sqrt(7))


def test_fewer_survivors_than_planned_cost_more_and_more_cost_less() -> None:
    # 10, 30 and 50 % unaccounted dropouts turn 71.2 into 78.0, 96.9 and 130.3.
    for survivors, epsilon in ((45, 78.0), (35, 96.9), (25, 130.3)):
        ledger = charged(100, list(range(survivors)), Noise(1.0, "outsider", 50))
        assert ledger.epsilon(50**-1.1)["outsider"] == pytest.approx(epsilon, abs=0.1)


def test_colluders_take_their_shares_out() -> None:
    ledger = charged(1, list(range(10)), Noise(1.0, "outsider", 10, colluders=4))
    assert ledger.mu("outsider") == pytest.approx(1.0)
    assert ledger.mu("peer") == pytest.approx(1.0)


def test_all_releases_of_a_round_are_charged() -> None:
    releases = {"update": Update("clip", share=0.75), "below": Number(0.0, 1.0, share=0.25)}
    ledger = charged(1, [0], Noise(2.0, "server", 1), releases=releases)
    assert ledger.mu("server") == pytest.approx(0.5)
    assert len(ledger.rows) == 2


def test_a_bare_release_makes_epsilon_infinite_and_says_why() -> None:
    ledger = charged(2, [0, 1], Noise(1.0, "server", 2), releases={"update": Bare("sent as it is")})
    assert ledger.epsilon(1e-5) == {"outsider": math.inf, "peer": math.inf, "server": math.inf}
    assert ledger.reasons() == ["update: sent as it is"]


def test_an_empty_ledger_costs_nothing() -> None:
    assert set(Ledger(3).epsilon(1e-5).values()) == {0.0}
    assert set(Ledger(3).attack_accuracy().values()) == {0.5}


def test_the_chain_shows_a_changed_a_lost_and_a_swapped_row() -> None:
    ledger = charged(3, [0, 1], Noise(1.0, "server", 2))
    head = ledger.head
    assert Ledger(50, Unit.CLIENT, ledger.rows).head == head
    assert Ledger(50, Unit.CLIENT, ledger.rows[:2]).head != head
    assert Ledger(50, Unit.CLIENT, [ledger.rows[1], ledger.rows[0], ledger.rows[2]]).head != head
    one = np.ones(1).tobytes()
    for change in (
        {"noise": np.full((1, 3), 9.0).tobytes()},
        {"owners": b"\0\0\0\0"},
        {"round": 7},
        {"question": 7},
        {"reason": "x"},
        {"exposed": True},
        {"told": "x"},
        {"sensitivity": one},
    ):
        assert Ledger(50, Unit.CLIENT, [replace(ledger.rows[0], **change), *ledger.rows[1:]]).head != head


def test_epsilon_follows_mu() -> None:
    ledger = charged(9, [3], Noise(1.5, "server", 1))
    assert ledger.epsilon(1e-6)["server"] == pytest.approx(epsilon_of(2.0, 1e-6))


def test_whoever_reads_single_messages_pays_for_them() -> None:
    """A median of single messages is no function of their sum: everybody learns what the server learns."""
    noise = Noise(3.97, "outsider", 10)
    ledger = charged(20, list(range(10)), noise, 10)
    assert ledger.mu("outsider") == pytest.approx(math.sqrt(20) / 3.97)
    for row in list(ledger.rows):
        ledger.expose(row)
    for view in VIEWS:
        assert ledger.mu(view) == pytest.approx(math.sqrt(200) / 3.97)
    for row in ledger.rows[:20]:
        assert ledger.expose(row) == [], "nothing is charged twice"


def test_whoever_reads_single_messages_pays_for_them_though_something_else_left_bare() -> None:
    """What would hold if the bare release were public is what the noise is worth to whoever reads single messages."""
    noise = Noise(3.97, "outsider", 10)
    ledger = charged(20, list(range(10)), noise, 10)
    public = Public({}, range(10), {}, layers=[5])
    ledger.charge({"records": Bare("they are public")}, 20, 20, "local", Allowance(noise), public)
    for row in list(ledger.rows):
        ledger.expose(row)
    assert ledger.epsilon(0.1) == dict.fromkeys(VIEWS, math.inf)
    assert ledger.covered_epsilon(0.1) == pytest.approx(dict.fromkeys(VIEWS, epsilon_of(math.sqrt(200) / 3.97, 0.1)))


def test_only_what_was_read_is_charged() -> None:
    ledger = charged(4, list(range(10)), Noise(1.0, "outsider", 10), 10)
    ledger.expose(ledger.rows[1])
    assert ledger.mu("outsider") ** 2 == pytest.approx(3 + 10)
    assert ledger.mu("server") ** 2 == pytest.approx(40)


def test_what_was_computed_from_single_messages_exposes_all_of_them() -> None:
    """Counts of masks leave the server's guarantee only; 10 clients, target 2, is 10.1.

    The mask may be sent in a step of its own: what it was computed from is charged all the same.
    """
    noise = Noise(3.97, "outsider", 10)
    ledger = charged(20, list(range(10)), noise, 10)
    public = Public({}, range(10), {"mask": torch.ones(10, 5)}, layers=[5])
    (row,) = ledger.charge({"mask": Derived("mask")}, 20, 20, "tell", Allowance(noise), public)
    assert ledger.mu("outsider") == pytest.approx(math.sqrt(20) / 3.97), "the server alone learns nothing new"
    ledger.expose_all(range(10), (row.question, row.round, row.step))
    assert ledger.mu("outsider") == pytest.approx(ledger.mu("server")) == pytest.approx(math.sqrt(200) / 3.97)
    assert ledger.epsilon(0.1)["outsider"] == pytest.approx(10.1, abs=0.05)
    assert Ledger(10, Unit.CLIENT, ledger.rows).epsilon(0.1) == ledger.epsilon(0.1), "rows alone decide"


def test_every_owner_pays_for_its_own_threshold() -> None:
    """Whoever has a larger threshold than the others is covered by less noise in the sum (H10)."""
    thresholds = torch.tensor([1.0, 1.0, 10.0])
    ledger = Ledger(3)
    public = Public({"clip": Each(thresholds)}, range(3), layers=[5])
    ledger.charge(UPDATE, 0, 0, "local", Allowance(Noise(2.0, "outsider", 3)), public)
    own = 4.0 / 3 * thresholds.double().square()
    expected = thresholds.double().square() / own.sum()
    assert ledger.spent[VIEWS.index("outsider")] == pytest.approx(expected.numpy())
    assert ledger.spent[VIEWS.index("server")] == pytest.approx(np.full(3, 3 / 4))
    # The peer with the largest share subtracts it; against that peer itself the next largest one counts.
    assert ledger.spent[VIEWS.index("peer")] == pytest.approx([1 / (8 / 3), 1 / (8 / 3), 100 / (4 / 3 * 101)])


def test_a_coordinate_that_few_contribute_to_carries_little_noise() -> None:
    """H9: with masks of their own, clients are charged for the coordinate that fewest contribute to."""
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    public = Public({}, range(3), {"shared": mask}, layers=[2])
    ledger = Ledger(3)
    ledger.charge({"update": Update(1.0, at="shared")}, 0, 0, "local", Allowance(Noise(1.0, "outsider", 3)), public)
    assert ledger.spent[VIEWS.index("outsider")] == pytest.approx([3.0, 1.0, 1.0])
    assert ledger.spent[VIEWS.index("server")] == pytest.approx([3.0, 3.0, 3.0])


def test_a_records_charges_are_composed_with_its_clients() -> None:
    """What left of the whole client counts for each of its records, at twice its bound."""
    ledger = Ledger(1, Unit.RECORD)
    steps = Charge.of_records("training", [(0.1, 1.0, 50)])
    means = Charge.of_records("validation", [(1.0, 2.0, 3)])
    for number, charge in enumerate((steps, means)):
        ledger.append(row_of(number, charge))
    alone = ledger.epsilon(1e-5)["server"]
    training, validation = ((0.1, 1.0, 50),), ((1.0, 2.0, 3),)
    assert alone == pytest.approx(max(record_epsilon(training, 1e-5), record_epsilon(validation, 1e-5)))
    ledger.append(row_of(2, Charge(np.array([1.0]), np.array([[8.0, 4.0, 2.0]]))))
    expected = record_epsilon(((1.0, 1.0, 1), *training), 1e-5)  # deviation 2 over twice the bound 1
    assert ledger.epsilon(1e-5)["server"] == pytest.approx(expected)
    assert ledger.epsilon(1e-5)["server"] > ledger.epsilon(1e-5)["outsider"] > alone
    # Replaced, a record moves gradients twice as far, and the whole client's contribution no further than before.
    exchanged = max(replaced_epsilon(((1.0, 2.0, 1), *pool), 1e-5) for pool in (training, validation))
    assert ledger.replaced("server", 1e-5) == (pytest.approx(exchanged), 1e-5)


def test_noise_for_records_protects_no_client() -> None:
    ledger = Ledger(1, Unit.CLIENT)
    ledger.append(row_of(0, Charge.of_records("training", [(0.1, 1.0, 50)])))
    assert set(ledger.epsilon(1e-5).values()) == {math.inf}


def row_of(question: int, charge: Charge):
    from sordino.privacy.ledger import Row

    return Row.of((question, question, "local", "update"), [0], charge)


def test_layers_cost_what_their_noise_says() -> None:
    public = Public({"clip": torch.tensor([0.3, 0.4])}, [0], layers=[70, 30])
    for spread in ("energy", "proportional"):
        ledger = Ledger(1)
        release = {"update": Update("clip", layered=True, spread=spread)}
        (row,) = ledger.charge(release, 0, 0, "local", Allowance(Noise(2.5, "server", 1)), public)
        assert ledger.mu("server") == pytest.approx(1 / 2.5, rel=1e-12)
        assert np.frombuffer(row.sensitivity) == pytest.approx([0.5])


@pytest.mark.parametrize("sizes", [[70, 20, 10], [1] * 100])
def test_parts_that_are_noised_as_if_alone_are_charged_together(sizes: list[int]) -> None:
    """Each part is clipped to C with noise for C: one client moves the sum by C sqrt(parts)."""
    public, allowance = Public({"clip": 0.3, "parts": sizes}, [0], layers=[100]), Allowance(Noise(2.5, "server", 1))
    release = Update("clip", layered=True, spread="alone", sizes="parts")
    ledger = Ledger(1)
    (row,) = ledger.charge({"update": release}, 0, 0, "local", allowance, public)
    assert ledger.mu("server") == pytest.approx(math.sqrt(len(sizes)) / 2.5, rel=1e-12)
    assert np.frombuffer(row.sensitivity) == pytest.approx([0.3 * math.sqrt(len(sizes))])
    assert release.deviation(allowance, public).tolist() == pytest.approx([0.75] * 100)
    twice = replace(release, excess=2.0)
    assert twice.deviation(allowance, public).tolist() == pytest.approx([1.5] * 100)
    charge = twice.charge(allowance, public)
    assert charge.sensitivity / charge.noise[0] == pytest.approx([math.sqrt(len(sizes)) / 5] * 3)
    bounded = release.bounded(torch.linspace(-2.0, 3.0, 100).unsqueeze(0), public).rows
    for part, given in zip(bounded[0].split(sizes), torch.linspace(-2.0, 3.0, 100).split(sizes), strict=True):
        assert torch.allclose(part, given * min(1.0, 0.3 / float(given.norm())), rtol=1e-6)
        assert float(part.double().norm()) <= 0.3


@pytest.mark.parametrize(
    "sizes", [[70, 20], [1] * 99, [120, -20], Each(torch.tensor([[70.0, 30.0]])), [0, 100]], ids=str
)
def test_sizes_that_are_not_those_of_the_message_are_refused(sizes: object) -> None:
    public = Public({"clip": 0.3, "parts": sizes}, [0], layers=[100])
    release = Update("clip", layered=True, spread="alone", sizes="parts")
    with pytest.raises(ReleaseError, match="sizes that sum to the 100 entries"):
        release.charge(Allowance(Noise(2.5, "server", 1)), public)


@pytest.mark.parametrize("excess", [0.0, -1.0, math.inf, math.nan, [1.0, 2.0]])
def test_an_excess_of_noise_is_a_number_above_zero(excess: object) -> None:
    public = Public({"clip": 0.3, "parts": [60, 40], "excess": excess}, [0], layers=[100])
    release = Update("clip", layered=True, spread="alone", sizes="parts", excess="excess")
    with pytest.raises(ReleaseError, match="one finite number above 0"):
        release.charge(Allowance(Noise(2.5, "server", 1)), public)


def test_what_whole_numbers_add_is_charged_to_each_observer() -> None:
    """With guaranteed shares an outsider meets noise of variance S^2 h, a peer S^2 (h - 1), the server S^2."""
    noise, shares, entries, rounds, delta = Noise(1.5, "outsider", 9, shares=7), 7, 5, 4, 1e-5
    ledger = Ledger(3)
    for number in range(rounds):
        public = Public({"clip": 0.5}, [2], layers=[entries])  # as a site knows it: nobody but itself
        ledger.charge(UPDATE, number, number, "local", Allowance(noise, whole=True), public)
    for view, met in zip(VIEWS, (shares, shares - 1, 1), strict=True):
        gap = Gap(entries * rounds, met, CLIENTS)
        mu = math.sqrt(rounds) / 1.5 * math.sqrt(shares / met)
        expected = gap.spent(functools.partial(epsilon_of, gap.mu(mu)), delta)
        assert ledger.epsilon(delta)[view] == pytest.approx(expected, rel=1e-12)
        assert ledger.epsilon(delta)[view] > epsilon_of(mu, delta)
    assert [(row.entries, row.shares) for row in ledger.rows] == [(entries, shares)] * rounds


def test_guaranteed_shares_are_charged_whoever_is_asked() -> None:
    """The server's word on who answered buys nothing: 7 of 9 sites share the noise, however many are asked."""
    costs = []
    for who in ([0], list(range(9)), list(range(50))):
        ledger = charged(1, who, Noise(1.0, "outsider", 9, shares=7))
        costs.append([ledger.mu(view) for view in VIEWS])
    assert costs[0] == pytest.approx([1.0, math.sqrt(7 / 6), math.sqrt(7)])
    assert costs[1] == pytest.approx(costs[0])
    assert costs[2] == pytest.approx(costs[0])


def test_sums_over_records_are_charged_for_rounding() -> None:
    charge = Charge.of_records("training", [(0.1, 1.2, 30)], entries=10_000)
    assert charge.entries == 300_000
    assert charge.sampled is not None
    rate, multiplier, count = charge.sampled[0]
    assert (rate, count) == (0.1, 30)
    assert multiplier == pytest.approx(1.2 / (1 + 1.2 * 100 / 2**20), rel=1e-4)
    ledger = Ledger(1, Unit.RECORD)
    ledger.append(Row.of((0, 0, "local", "update"), [0], charge))
    closed = record_epsilon(((0.1, float(multiplier), 30),), 1e-5)
    assert closed < ledger.epsilon(1e-5)["server"] < closed + 1e-6
    assert ledger.record_epsilons("server", 1e-5)[0] == ledger.epsilon(1e-5)["server"]


def test_of_a_promise_nothing_is_known_but_its_epsilon_at_its_delta() -> None:
    """Group privacy: one place emptied and filled again costs 2 epsilon at (1 + exp(epsilon)) delta, and nothing is
    known at delta itself, or below it; where noise from a known seed keeps it, nothing holds."""
    charge = Charge.promised([(2.0, 1e-5), (1.0, 1e-5)])
    ledger = Ledger(2, Unit.RECORD, [Row.of((0, 0, "local", "plan"), [0, 1], charge)])
    assert ledger.epsilon(1e-5) == dict.fromkeys(VIEWS, 2.0)
    assert ledger.record_epsilons("server", 1e-5) == {0: 2.0, 1: 1.0}
    assert ledger.epsilon(0.9e-5) == dict.fromkeys(VIEWS, math.inf)
    assert ledger.replaced("server", 1e-5) == (4.0, pytest.approx((1 + math.exp(2)) * 1e-5))
    assert ledger.record_epsilons("server", 1e-5, replace=True) == {0: math.inf, 1: math.inf}
    assert ledger.attack_accuracy()["server"] == pytest.approx(attack_accuracy(mu_of(2.0, 1e-5)))
    assert ledger.promised() == (2.0, 1e-5)
    more = Ledger(
        2,
        Unit.RECORD,
        [*ledger.rows, Row.of((1, 1, "local", "loss"), [0], Charge.of_records("training", [(1.0, 4.0, 1)]))],
    )
    assert more.epsilon(3e-5)["server"] == pytest.approx(2.0 + epsilon_of(0.25, 2e-5), rel=1e-6)
    assert more.epsilon(1e-5)["server"] == math.inf
    known = Ledger(2, Unit.RECORD, [Row.of((0, 0, "local", "plan"), [0, 1], charge.known("the seed is known"))])
    assert known.epsilon(1e-5)["server"] == math.inf
    assert known.attack_accuracy()["server"] == 1.0


def test_several_rows_are_told_of_where_every_price_is_known() -> None:
    """Three rows at the client that paid most move its mean three times as far; of promises nothing is known."""
    ledger = Ledger(2, Unit.RECORD)
    paid = Charge.of_records("training", [(1.0, 10.0, 1), (1.0, 20.0, 1)], 0)
    ledger.append(Row.of((0, 0, "local", "update"), [0, 1], paid))
    found = ledger.rows_epsilons("server", 1e-5)
    assert found == {"3": pytest.approx(epsilon_of(0.3, 1e-5)), "5": pytest.approx(epsilon_of(0.5, 1e-5))}
    ledger.append(Row.of((1, 1, "local", "plan"), [0], Charge.promised([(1.0, 1e-5)])))
    assert ledger.rows_epsilons("server", 1e-5) == {}
    whole = Ledger(1, Unit.RECORD)
    whole.append(Row.of((0, 0, "local", "update"), [0], Charge.of_records("training", [(1.0, 10.0, 1)], 5)))
    assert whole.rows_epsilons("server", 1e-5) == {}


def test_colluders_take_their_shares_out_of_numbers_too() -> None:
    """Ten messages share the noise that seven must carry: whoever knows three shares meets exactly what was planned."""
    releases = {"below": Number(0.0, 1.0, share=1.0)}
    ledger = charged(4, list(range(10)), Noise(2.0, "outsider", 10, colluders=3), releases=releases)
    assert ledger.mu("outsider") == ledger.mu("peer") == pytest.approx(math.sqrt(4) / 2.0)


def test_colluders_take_their_shares_out_where_masks_differ() -> None:
    """Each of four messages carries a third of the variance. At the second place two of them add up, less the one that
    a colluder knows: one share is left. At the first place three are."""
    mask = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    public = Public({}, range(4), {"shared": mask}, layers=[2])
    noise = Noise(1.0, "outsider", 4, colluders=1)
    ledger = Ledger(4)
    ledger.charge({"update": Update(1.0, at="shared")}, 0, 0, "local", Allowance(noise), public)
    assert ledger.spent[VIEWS.index("outsider")] == pytest.approx([3.0, 3.0, 1.0, 1.0])
    assert ledger.spent[VIEWS.index("peer")] == pytest.approx([3.0, 3.0, 1.0, 1.0])


def test_what_tells_of_single_messages_exposes_every_release_of_everybody() -> None:
    """Both releases of each of ten clients: ten times the outsider's price."""
    releases = {"update": Update("clip", share=0.5), "below": Number(0.0, 1.0, share=0.5)}
    ledger = charged(3, list(range(10)), Noise(1.0, "outsider", 10), 10, releases)
    assert ledger.spent[VIEWS.index("outsider")] == pytest.approx(np.full(10, 3.0))
    rows = ledger.expose_all(range(10), (3, 3, "tell"))
    assert {row.release for row in rows} == {"update", "below"}
    assert ledger.spent[VIEWS.index("outsider")] == pytest.approx(np.full(10, 30.0))


def test_whole_numbers_of_all_questions_add_up() -> None:
    """So many entries that what they add shows: four questions of a million are as one of four million."""
    found = []
    for rounds, entries in ((4, 10**6), (1, 4 * 10**6)):
        ledger = Ledger(1)
        for number in range(rounds):
            charge = Charge(np.ones(1), np.full((1, 3), math.sqrt(rounds)), entries=entries, shares=4)
            ledger.append(Row.of((number, number, "local", "update"), [0], charge))
        found.append(ledger._gaps("outsider"))
    assert found == [[Gap(4 * 10**6, 4, CLIENTS)]] * 2


def test_a_matrix_is_made_of_all_records() -> None:
    """No coin hides a record of a second-moment matrix: its rate is one, as that of a mean over validation records."""
    plan = plan_records([100], np.array([2.0]), 1e-5, batch=10, epochs=1, turns=2, needs=NEEDS)
    allowance, public = Allowance(records=plan), Public({"directions": torch.eye(3)}, layers=[5])
    multipliers = [(Matrix(0.3), plan.matrix_multipliers), (Average(0.0, 1.0), plan.mean_multipliers)]
    for release, (multiplier,) in multipliers:
        charge = release.charge(allowance, public)
        assert charge.sampled is not None
        assert charge.sampled.tolist() == [[1.0, multiplier, 1.0]]


def test_the_whole_plan_holds_later_attempts_too() -> None:
    """Thirty sums are planned, ten of them were asked twice: 40 in all, of which no plan knew."""
    charge = Charge.of_records("training", [(0.1, 2.0, 10)])
    rows = [Row.of((number_of_attempt(0, before), 0, "local", "update"), [0], charge) for before in (0, 1)]
    ledger = Ledger(1, Unit.RECORD, rows)
    whole = ledger.completed(3, 3, planned={"training": {0: ((0.1, (2.0,) * 3, 30),)}})
    assert whole.recipes() == {((0.1, (2.0,) * 3, 40),)}
    assert ledger.later_attempts() == {(0.1, (2.0,) * 3): 10}
    assert Ledger(1, Unit.RECORD, rows[:1]).later_attempts() == {}


def of_three(charge: Charge) -> Row:
    """Row of three clients."""
    return Row.of((0, 0, "local", "update"), [0, 1, 2], charge)


def test_the_client_that_pays_most_decides_whatever_it_paid_for() -> None:
    """Of clients with equal histories of records one has paid more as a whole; of clients who paid the same as a whole,
    one's records went through more."""
    allowance = Allowance(Noise(3.0, "server", 1))
    for dearest in range(3):
        ledger = Ledger(3, Unit.RECORD)
        ledger.append(of_three(Charge.of_records("training", [(1.0, 4.0, 1)] * 3)))
        ledger.charge(UPDATE, 1, 1, "local", allowance, Public({"clip": 1.0}, [dearest], layers=[5]))
        alone = ledger.record_epsilons("server", 1e-5)
        assert max(alone, key=lambda client: alone[client]) == dearest
        assert ledger.epsilon(1e-5)["server"] == alone[dearest] > min(alone.values())
        assert len(ledger.recipes()) == 2
    for dearest in range(3):
        ledger = Ledger(3, Unit.RECORD)
        paid = [(1.0, 4.0, 2 if client == dearest else 1) for client in range(3)]
        ledger.append(of_three(Charge.of_records("training", paid)))
        alone = ledger.record_epsilons("server", 1e-5)
        assert ledger.epsilon(1e-5)["server"] == alone[dearest] > min(alone.values())
        assert ledger.attack_accuracy()["server"] == pytest.approx(attack_accuracy(math.sqrt(2) / 4))


def test_each_owner_is_charged_its_own_multiplier() -> None:
    row = of_three(Charge.of_records("training", [(0.5, 2.0, 3), (0.25, 8.0, 1), (1.0, 1.0, 2)]))
    assert row.sums() == [((0.5, (2.0,) * 3), 3), ((0.25, (8.0,) * 3), 1), ((1.0, (1.0,) * 3), 2)]
