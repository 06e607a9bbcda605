"""Blending: a client's mixture of its own and the federation's models, weighted by likelihoods of held-out records.

A client's candidates are models that it trained alone, the server's model tuned to the client's records, the federated
method's own personal model, the mean of the server's models over the rounds, both the server's model and that mean
adjusted to the client's labels, and the server's model recalibrated on the client's records. Their class probabilities
are mixed with weights w that maximise

    sum over records i of log(sum over members m of w_m p_m(y_i | x_i))  +  PRIOR sum over members m of log(w_m)

which is stacking (Wolpert 1992; Breiman 1996) for probabilities, with a prior that counts as PRIOR records for each
member. Where noise drowns what is shared, the federation's members keep only the share `trust` of that prior, and the
local model gets the rest: few records cannot tell noise from knowledge, and clients must not lose by it. A mixture
beats choosing the best member because members err on different records; and because the likelihood of held-out records
is maximised, a member that knows nothing loses its weight.

All records are used: those of a client are dealt to FOLDS folds, and members are evaluated by models that were trained
on all folds but one, each on the fold that it has not seen. Settings that suit a federation need not suit a client that
trains alone: where those of the run's method are not those of the method `local`, a client trains with both, and linear
models also with longer steps; the held-out records choose (`sordino.federation.blending.trainings`). Then the local
model is trained anew on all records, and the tuned one is the mean of those tuned without each fold, which all started
from the server's model. The server's models are evaluated on all records: under client-level privacy they depend very
little on any one client. The method's own personal model has been trained on all records, so the client has no held-out
records to evaluate it. It therefore shares the weight of the tuned models: there it counts as much as each of the FOLDS
tuned models, as far as the federation is trusted.

In a mean over rounds the noise of single rounds averages out, but the mean lags behind while training still progresses
(`sordino.parts.averaging`): records decide how much it counts beside the last model.

Adjusted means that class probabilities are multiplied by how often the client has each label: Bayes' rule, where
clients differ in their labels alone and the server's model has met all labels alike (Saerens, Latinne and Decaestecker
2002). Each label is counted as a few records more than there are; a record is judged by the counts of the others.

Recalibrated means a slope on the log-probabilities and an offset for each class, fitted to records with a penalty
(`sordino.tasks.recalibration`); a record is judged by a fit to the other folds. Its power is the fitted slope.

A model that has memorised its few records is overconfident on others. So each member's probabilities are first raised
to a power b and scaled to sum to one again; b is found by the same held-out likelihoods, less CAUTION log(b)^2.

FOLDS, PRIOR, TRUSTED, CAUTION, the smoothing of labels and what is mixed were chosen on a few runs;
experiments/blend.toml says on which, what else was tried, and what came of it on runs that had no part in the choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sordino.privacy.unit import Unit
from sordino.tasks import Task

MEMBERS = ("local", "tuned", "own", "averaged", "adjusted", "averaged_adjusted", "recalibrated")
"""Members of the mixture: models trained alone, the server's model tuned, the method's personal model, the mean of the
server's models over the rounds, the server's model adjusted to the client's labels, that mean adjusted to them, and the
server's model recalibrated on the client's records."""
LOCAL, TUNED, OWN, AVERAGED, ADJUSTED, AVERAGED_ADJUSTED, RECALIBRATED = range(len(MEMBERS))
NETWORKS = {**{member: member for member in range(len(MEMBERS))}, AVERAGED_ADJUSTED: AVERAGED, RECALIBRATED: ADJUSTED}
"""By member, the first member that has the same network: some differ in how probabilities are changed alone."""
FOLDS = 3
"""Number of folds of a client's records: training without each of three costs twice what training on all does."""
PRIOR = 1.0
"""Weight of the prior for each member, in records: it keeps few records from deciding everything."""
TRUSTED: dict[Unit, float] = {Unit.CLIENT: 36.0, Unit.RECORD: 3600.0}
"""Number of parameters with a signal as strong as the noise, divided by the square root of the network's size, from
which the federation's members are trusted as much as the local one: the larger a network, the smaller the share of it
that matters. Gradients of records agree far less with each other than updates of clients do."""
ENOUGH = 20.0
"""Effective training records for each feature, and for one more, from which a client that recalibrates takes the mean
with the model that it trained alone, where no noise is on the server's: with fewer that model knows too little."""
DOUBT = 1 / 240
"""Strength with which noise on the server's model lowers that number, times what TRUSTED says of the unit. Both were
chosen on seven tables in 4, 10 and 20 sites where records are protected (`experiments/tables.md`)."""
STEPS = 200
"""Steps of expectation maximisation: far more than the weights need."""
BOLD = 10.0
"""Factor on the rate of the method `local` with which clients that blend also train linear models alone. On features of
length 1 steps of the rate itself are short: on CIFAR-10 in ten clients (seed 10) 60 passes came to 46.8 % and 150 to
49.0 %, 60 with longer steps to 50.4 %; FEMNIST's first 50 writers (seeds 10 and 11) to 51.4, 62.8 and 70.2 %."""
LOCAL_PASSES = 60
"""Passes over the records after which local training stops, to save time: where 100 passes of the method `local` came
to 72.1 %, 60 came to 71.6 (digits, 100 clients, 3 seeds)."""


def folds(groups: np.ndarray, seed: int) -> np.ndarray:
    """Return the fold of each record: random, with each group (`Task.group`) spread over the folds evenly."""
    mixed = np.random.default_rng(seed).permutation(len(groups))
    by_group = mixed[np.argsort(groups[mixed], kind="stable")]
    dealt = np.empty(len(groups), dtype=np.int64)
    dealt[by_group] = np.arange(len(groups)) % FOLDS
    return dealt


def trust_of(feasible: float, parameters: int, unit: Unit) -> float:
    """Return the share of their prior that the federation's members keep, from 0 to 1. It depends on public values
    only.

    Args:
        feasible: Number of shared parameters that have a signal as strong as the noise at this budget.
        parameters: Number of parameters of the network.
        unit: What the budget protects.
    """
    return min(1.0, feasible / math.sqrt(parameters) / TRUSTED[unit]) ** 2


def enough_records(features: int, feasible: float, unit: Unit) -> float:
    """Return the effective number of training records above which a client that recalibrates takes the mean with the
    model that it trained alone.

    A linear model of d inputs that is trained on n records alone errs by d / n, and noise adds d^2 / `feasible` to the
    error of the server's, up to constants: the more noise, the fewer records are enough. The number depends on public
    values only.

    Args:
        features: Number of features, and one for the intercept: d.
        feasible: Number of shared parameters that have a signal as strong as the noise at this budget.
        unit: What the budget protects.
    """
    if feasible == 0:
        return 0.0
    return features / (1 / ENOUGH + DOUBT * TRUSTED[unit] * features**2 / feasible)


def priors(present: Tensor, trust: float) -> Tensor:
    """Return the weight of the prior for each member that is `present`, in records: what the federation's members are
    not trusted with goes to the local one, if it is present."""
    found = PRIOR * present.double()
    given = found * (1 - trust) * present[LOCAL]
    given[LOCAL] = 0
    found = found - given
    found[LOCAL] += given.sum()
    return found


def weights(likelihoods: Tensor, present: Tensor, trust: float) -> Tensor:
    """Return the members' weights. The objective is concave, so that expectation maximisation finds its maximum.

    Args:
        likelihoods: Log-likelihoods (records, members) of held-out records.
        present: Which members exist (members); the others get weight zero.
        trust: Share of their prior that the federation's members keep.
    """
    mask, prior = present.double(), priors(present, trust)
    found = mask / mask.sum()
    known = likelihoods.double().nan_to_num(nan=0.0, neginf=-math.inf)  # of models that overflowed
    for _ in range(STEPS):
        shares = torch.softmax(known + found.log(), dim=1)
        counts = shares.sum(dim=0) * mask + prior
        found = counts / counts.sum()
    return found


def offsets(frequencies: Tensor) -> Tensor:
    """Terms to add to each member's log-probabilities, (members, ..., width): the client's label
    `frequencies`, as logarithms (..., width), for members that are adjusted to them, zero for the others."""
    found = torch.zeros(len(MEMBERS), *frequencies.shape)
    found[[ADJUSTED, AVERAGED_ADJUSTED]] = frequencies
    return found


def mixture(task: Task, log_probabilities: Tensor, weights: Tensor, powers: Tensor, offsets: Tensor) -> Tensor:
    """Logarithms of the mixed probabilities, (records, width).

    Args:
        log_probabilities: (members, records, width), what each member says.
        weights: (members,) that sum to one.
        powers: (members,) to which probabilities are raised before they are mixed.
        offsets: (members, width), see `offsets`.
    """
    log_weights = weights.to(log_probabilities).log().reshape(-1, 1, 1)
    said = task.sharpen(log_probabilities, powers.reshape(-1, 1, 1), offsets.unsqueeze(1))
    return task.mix(said, log_weights)


class Blended(nn.Module):
    """A mixture of networks as one network, whose outputs are the logarithms of the mixed probabilities."""

    def __init__(
        self, task: Task, members: Sequence[nn.Module], weights: Tensor, powers: Tensor, offsets: Tensor
    ) -> None:
        """Rules as in `mixture`. A network that is given several times is kept, and asked, once."""
        super().__init__()
        self.task = task
        self.members = nn.ModuleList(dict.fromkeys(members))
        self._places = [list(self.members).index(member) for member in members]
        self.register_buffer("weights", weights)
        self.register_buffer("powers", powers)
        self.register_buffer("offsets", offsets)

    def forward(self, x: Tensor) -> Tensor:
        said = [self.task.log_probabilities(network(x)) for network in self.members]
        found = torch.stack([said[place] for place in self._places])
        return mixture(self.task, found, *(self.get_buffer(name) for name in ("weights", "powers", "offsets")))
