"""A plan for an experiment: the budget's arithmetic, with the size of its model where that is known."""

from __future__ import annotations

from sordino.errors import UserError
from sordino.experiment.config import DEFAULT_CLIENTS, DEFAULT_EPSILON, Experiment
from sordino.privacy.plan import Plan, plan


def plan_of(experiment: Experiment, parameters: int | None, with_model: bool) -> Plan:
    """What an experiment would cost; `with_model` counts the parameters of its network on its data."""
    if experiment.privacy == "none":
        raise UserError('With privacy = "none" there is no noise to plan, and epsilon is infinite: leave it out.')
    _check_plannable(experiment)
    clients = experiment.clients or DEFAULT_CLIENTS
    if with_model and parameters is None:
        from sordino.experiment.prepare import prepare_to_count

        prepared = prepare_to_count(experiment)
        parameters, clients = prepared.learner.layout.size, len(prepared.data.clients)
    epsilon = experiment.epsilon
    if epsilon is None and experiment.noise_multiplier is None:
        epsilon = DEFAULT_EPSILON
    return plan(
        clients,
        experiment.rounds,
        experiment.delta,
        epsilon=epsilon,
        noise_multiplier=experiment.noise_multiplier,
        protect_from=experiment.protect_from,
        participation=experiment.participation,
        parameters=parameters,
        allow_vacuous_delta=experiment.allow_vacuous_delta,
    )


def _check_plannable(experiment: Experiment) -> None:
    """Refuse an experiment whose epsilon this arithmetic, of Gaussian noise for whole clients, does not tell."""
    method = experiment.build_method()
    releases = [release for step in method.steps().values() for release in step.values()]
    if experiment.noise == "integers":
        raise UserError(
            'A simulation with noise = "integers" has an infinite epsilon, whatever is planned: leave it out.'
        )
    if not all(release.private for release in releases):
        raise UserError(
            f"{experiment.method} sends something without noise: its epsilon is infinite, whatever is planned."
        )
    if method.unit == "record":
        raise UserError(
            f"{experiment.method} protects records, and this plan is for whole clients: `sordino advise` compares the "
            "levels, and a run tells each client's noise."
        )
    if not all(release.known_beforehand() for release in releases):
        raise UserError(f"The published {experiment.method} costs more than its noise says: a run tells how much.")
