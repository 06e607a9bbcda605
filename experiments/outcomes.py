"""Numbers and times to an event on real tables in a few sites: `experiments/outcomes.md` says how to run it.

python experiments/outcomes.py make TABLES
python experiments/outcomes.py run TABLES [TABLE...]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import sordino
from sordino.data import federate, load
from sordino.data.draft import draft
from sordino.data.own import Reading
from sordino.data.schema import Schema

SEEDS = range(5)
SITES = {"diabetes-4": 4, "diabetes-12": 12, "visits-8": 8, "gbsg2-4": 4, "rossi-4": 4}
NUMBERS = ("r2", "rmse", "coverage")
TIMES = ("concordance", "integrated_brier", "constant_brier")
OUTCOMES: dict[str, dict[str, Any]] = {
    "diabetes": {"label": "progression"},
    "visits": {"label": "mdvis", "task": "regression"},
    "gbsg2": {"label": "time", "event": "cens", "task": "survival"},
    "rossi": {"label": "week", "event": "arrest", "task": "survival"},
}


def tables() -> dict[str, Any]:
    """Whole tables by name: scikit-learn's diabetes, 4,000 rows of the RAND health insurance experiment (visits to a
    doctor, 20 and more as 20), and two tables of lifelines."""
    import statsmodels.api
    from lifelines.datasets import load_gbsg2, load_rossi
    from sklearn.datasets import load_diabetes

    diabetes = load_diabetes(scaled=False, as_frame=True).frame.rename(columns={"target": "progression"})
    visits = statsmodels.api.datasets.randhie.load_pandas().data
    visits = visits.iloc[np.random.default_rng(0).permutation(len(visits))[:4000]]
    visits = visits.assign(mdvis=visits["mdvis"].clip(upper=20))
    return {"diabetes": diabetes, "visits": visits, "gbsg2": load_gbsg2(), "rossi": load_rossi()}


def make(folder: Path) -> None:
    """Deal the rows of each table to sites at random, and draft its schema."""
    whole = tables()
    for name, sites in SITES.items():
        table = whole[name.split("-")[0]]
        place = folder / name
        place.mkdir(parents=True)
        order = np.random.default_rng(0).permutation(len(table))
        for site in range(sites):
            table.iloc[order[site::sites]].to_csv(place / f"site{site}.csv", index=False)
        made = draft(place, **OUTCOMES[name.split("-")[0]])
        (folder / f"{name}.toml").write_text(made.text)


def pooled(folder: Path, name: str, seed: int) -> float:
    """Mean over sites of the metric of a model that is trained on all sites' training records without privacy: ridge
    regression, with the penalty that cross-validation finds, or Cox's model."""
    schema = Schema.read(folder / f"{name}.toml")
    data = federate(load(str(folder / name), how=Reading(schema=schema)), None, None, seed)
    x, y = data.train.x.numpy(), data.train.y.numpy()
    if data.task.name == "regression":
        from sklearn.linear_model import RidgeCV
        from sklearn.metrics import r2_score

        model = RidgeCV(np.logspace(-2, 4, 25)).fit(x, y)
        return float(np.mean([r2_score(one.y_test, model.predict(one.x_test.numpy())) for one in data.clients]))
    import pandas
    from lifelines import CoxPHFitter
    from lifelines.utils import concordance_index

    task: Any = data.task
    frame = pandas.DataFrame(x).assign(time=task.times(y), event=y > 0)
    model = CoxPHFitter(penalizer=0.01).fit(frame, "time", "event")
    found = []
    for one in data.clients:
        risk = model.predict_partial_hazard(pandas.DataFrame(one.x_test.numpy()))
        known = one.y_test.numpy()
        found.append(concordance_index(task.times(known), -risk, known > 0))
    return float(np.mean(found))


def run(folder: Path, wanted: Sequence[str] = ()) -> None:
    """Print a row of the table for each data set and method: means over sites, then over seeds.

    Args:
        folder: of `make`.
        wanted: names of tables; all of them where none is named.
    """
    ways: dict[str, dict[str, Any]] = {
        "alone": {"method": "local", "rounds": 60},
        "epsilon 1": {"epsilon": 1.0},
        "epsilon 4": {"epsilon": 4.0},
        "epsilon 8": {"epsilon": 8.0},
    }
    for name in wanted or SITES:
        metrics = TIMES if OUTCOMES[name.split("-")[0]].get("event") else NUMBERS
        for way, keys in ways.items():
            rows = []
            for seed in SEEDS:
                with tempfile.TemporaryDirectory() as store:
                    given = {"data": str(folder / name), "schema": str(folder / f"{name}.toml"), "store": store}
                    found = sordino.run(**given, seed=seed, workers=1, **keys)["metrics"]
                rows.append([found[metric]["mean"] for metric in metrics])
            show(name, way, np.array(rows, dtype=float))
        show(name, "pooled", np.array([[pooled(folder, name, seed)] for seed in SEEDS]))


def show(name: str, way: str, rows: np.ndarray) -> None:
    """Print the means of rows (seeds, metrics), and half of the 95 % interval of the first."""
    half = 1.96 * rows[:, 0].std(ddof=1) / len(rows) ** 0.5
    means = rows.mean(axis=0)
    print(f"| {name} | {way} | {means[0]:.3f} ± {half:.3f} |", *(f"{one:.3g} |" for one in means[1:]), flush=True)


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    make(folder) if sys.argv[1] == "make" else run(folder, sys.argv[3:])
