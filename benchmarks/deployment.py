"""What privacy costs on real machines: noise from the operating system, masks, the server's sum, a round over TLS.

    python benchmarks/deployment.py
    python benchmarks/deployment.py --only noise masks

Noise, masks and sums are told in the processor's time of one core, the quickest of some turns. The round is told by the
clock: a SuperLink with TLS and keys, and three or twenty sites, each a process of its own, with next to no training;
the middle of the rounds after the first. Needs the extra `deploy`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sordino.deploy.protocol.secure_sum import Cohort, Masker, Party, new_key, open_sum, public_key
from sordino.experiment.config import Experiment
from sordino.federation.rounds import RoundReport, RoundWatch
from sordino.privacy.integers import CLIENTS, RECORDS, gaussian_table
from sordino.privacy.noise import system_words

TURNS = 5
DRAWS = 2_000_000
PARAMETERS = 1_000_000
SITES = 50
ROUND = {
    **{"data": "digits", "records": 300, "partition": "iid", "method": "dp-fedavg", "rounds": 6},
    **{"noise_multiplier": 1.0, "set": {"epochs": 1}},
}
WIDE = ROUND | {"model": "mlp", "set": {"epochs": 1, "model.hidden": 1330}}
"""A network of 10^5 parameters."""


def quickest(work: Callable[[], object]) -> float:
    """Seconds of the processor."""
    found = []
    for _ in range(TURNS):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return min(found)


def noise() -> None:
    """Numbers of whole-number noise a second."""
    gaussian_table()
    for what, grid in (("for whole clients", CLIENTS), ("for records", RECORDS)):
        seconds = quickest(lambda grid=grid: grid.noise(system_words, DRAWS))  # type: ignore[misc]
        print(f"noise {what}: {DRAWS / seconds / 1e6:.1f} million numbers a second (aimed at: 5)")


def masks() -> None:
    """What one site and the server spend on a secure sum."""
    private = {os.urandom(32): new_key() for _ in range(SITES)}
    cohort = Cohort(bytes(32), tuple(Party(one, public_key(key)) for one, key in private.items()), SITES - 5)
    values = np.zeros(PARAMETERS, dtype=np.int64)
    about = f"{PARAMETERS:,} parameters, {SITES} sites"
    first = next(iter(private))
    seconds = quickest(lambda: Masker(cohort, first, private[first]).mask(values, 32))
    print(f"masks of one site: {seconds:.3f} s for {about} (aimed at: 0.2)")
    maskers = {one: Masker(cohort, one, key) for one, key in private.items()}
    sent = {one: masker.mask(values, 32) for one, masker in maskers.items()}
    for dropped in (0, 1):
        survivors = list(private)[dropped:]
        openings = {
            one: maskers[one].make_opening(survivors, {other: sent[other].shares[one] for other in survivors})
            for one in survivors
        }
        vectors = {one: sent[one].vector for one in survivors}
        begun = time.process_time()
        assert not open_sum(cohort, vectors, survivors, openings).any()
        print(f"the server's sum, {dropped} dropped: {time.process_time() - begun:.2f} s for {about}")


def rounds() -> None:
    """Seconds of a round in two trips, over TLS."""
    for sites, about, keys, aim in (
        (3, "of a small model", ROUND | {"model": "logistic"}, 1),
        (3, "of 10^5 parameters", WIDE, 6),
        (20, "of 10^5 parameters", WIDE, 5),
    ):
        seconds = seconds_of_rounds(keys, sites)
        print(f"a round of {sites} sites {about}: {seconds:.2f} s by the clock (aimed at: {aim})", flush=True)


def seconds_of_rounds(keys: dict[str, object], sites: int) -> float:
    """Seconds by the clock from one round to the next, the middle of those after the first."""
    from sordino.flower import trial

    found: list[float] = []

    def watch(report: RoundReport) -> None:
        found.append(report.seconds)

    with tempfile.TemporaryDirectory() as folder, trial.open_trial(Experiment.make(keys), sites, Path(folder)) as made:
        made.run(RoundWatch(watch), lambda sentence: None)
    return statistics.median(found[1:])


PARTS: dict[str, Callable[[], None]] = {"noise": noise, "masks": masks, "rounds": rounds}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    for part in parser.parse_args().only:
        PARTS[part]()


if __name__ == "__main__":
    main()
