"""Formulas behind printed numbers: accountants, curves and costs as the papers have them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypedDict

from sordino.errors import unknown
from sordino.papers.description import FormulaNumber
from sordino.parts.curves import PUBLISHED, plateau_then_cosine
from sordino.privacy.accounting.gaussian import rdp_epsilon, rdp_multiplier


class Repeated(TypedDict):
    """A printed number beside ours."""

    name: str
    published: float
    ours: float
    holds: bool
    """Whether ours, rounded as the paper rounds, is what it prints."""
    note: str


def user_level_epsilon(sigma: float, rounds: float, clients: float) -> float:
    """ACDP-pFSD: Opacus' RDP of as many Gaussians as rounds, at delta = clients^-1.1."""
    return rdp_epsilon(sigma, round(rounds), clients**-1.1)


def pooled_multiplier(
    epsilon: float, rounds: float, epochs: float, batch: float, records: float, delta: float
) -> float:
    """FedDPA's released code: the noise of DP-SGD on all clients' records together."""
    return rdp_multiplier(epsilon, round(rounds * epochs * records / batch), delta, rate=batch / records)


def parameter_space_multiplier(epsilon: float, rate: float, batch: float, rounds: float, delta: float) -> float:
    """AdaDP-CFL's released code: (2 eta / B) sqrt(2 ln(1.25/delta)) T / epsilon."""
    return 2 * rate / batch * math.sqrt(2 * math.log(1.25 / delta)) * rounds / epsilon


def mnist_threshold(epsilon: float) -> float:
    """PAC-DP's curve for MNIST."""
    return float(PUBLISHED["mnist"](epsilon))


def cifar10_threshold(epsilon: float) -> float:
    """PAC-DP's curve for CIFAR-10."""
    return float(PUBLISHED["cifar10"](epsilon))


def threshold_share(round: float, rounds: float) -> float:
    """PAC-DP's schedule: the share of its threshold that a client clips at, rounds counted from 0."""
    return plateau_then_cosine(int(round), int(rounds))


def least_epsilon(delta: float, orders: float) -> float:
    """Epsilon that an RDP accountant of orders up to `orders` prints for infinite noise."""
    return math.log(1 / delta) / (orders - 1)


def noise_term_ratio(clients: float, asked: float, then_asked: float, rounds: float, then_rounds: float) -> float:
    """PAC-DP, Table I: the noise term z C / (B sqrt(M)) with `then_asked` clients in each of `then_rounds` rounds, over
    that with `asked` in each of `rounds`, at equal epsilon: by its accountant z grows as the square root of the number
    of rounds in which a client takes part."""
    turns, then_turns = asked * rounds / clients, then_asked * then_rounds / clients
    return math.sqrt(then_turns / turns) / math.sqrt(then_asked / asked)


def saved_traffic(beta: float) -> float:
    """FedGLP-ADP: the share of traffic in % that masks save, (16 beta - 1) / 32."""
    return 100 * (16 * beta - 1) / 32


def fewer(ours: float, other: float) -> float:
    """Percentage of rounds that one method saves against another."""
    return 100 * (1 - ours / other)


def more(ours: float, other: float) -> float:
    """Percentage by which one figure is above another."""
    return 100 * (ours / other - 1)


FORMULAS: dict[str, Callable[..., float]] = {
    formula.__name__: formula
    for formula in (
        user_level_epsilon,
        pooled_multiplier,
        parameter_space_multiplier,
        mnist_threshold,
        cifar10_threshold,
        threshold_share,
        least_epsilon,
        noise_term_ratio,
        saved_traffic,
        fewer,
        more,
    )
}


def repeat_figure(figure: FormulaNumber) -> Repeated:
    """Compute a printed number again."""
    if figure.formula not in FORMULAS:
        raise unknown("formula", figure.formula, FORMULAS)
    ours = FORMULAS[figure.formula](**figure.given)
    holds = abs(ours - figure.published) <= 0.5 * 10**-figure.digits * (1 + 1e-9)
    return {"name": figure.name, "published": figure.published, "ours": ours, "holds": holds, "note": figure.note}
