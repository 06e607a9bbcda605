"""Raw tables of four hospitals, as they come: `python examples/hospitals.py FOLDER`.

FOLDER/north.csv and so on: stays of patients with mixed kinds of columns, missing values, a code of the patient (a
quarter of the patients stayed twice), and an outcome that one stay in twelve has. Columns stand in another order in
each file; `west` comes from an office program that writes semicolons and decimal commas. FOLDER-new/north.csv holds
stays whose outcome is not known yet.

The patients are made up, the same ones each time.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {"east": 420, "north": 600, "south": 480, "west": 360}
WARDS = ("medical", "surgical", "emergency")
COLUMNS = ("patient_id", "age", "sex", "ward", "systolic", "creatinine", "diabetes", "outcome")
MISSING = {"systolic": 0.03, "creatinine": 0.12, "ward": 0.02}


def patients(hospital: str, count: int, random: np.random.Generator) -> list[dict[str, Any]]:
    """So many stays at a hospital; who is old, has bad kidneys or came in an emergency is more often readmitted."""
    age = random.normal(62, 15, count).clip(18, 99).round()
    creatinine = random.lognormal(0.05, 0.4, count).clip(0.3, 9).round(2)
    systolic = random.normal(132, 19, count).clip(80, 220).round()
    diabetes = random.random(count) < 0.22
    ward = random.choice(len(WARDS), count, p=(0.5, 0.3, 0.2))
    score = 0.09 * (age - 62) + 2.2 * np.log(creatinine) + 1.6 * (ward == 2) + 1.0 * diabetes - 0.02 * (systolic - 132)
    noisy = score + random.logistic(0, 0.7, count)
    readmitted = noisy > np.quantile(noisy, 0.92)
    found = []
    for place in range(count):
        row: dict[str, Any] = {
            "patient_id": f"{hospital[0].upper()}{100_000 + place - place // 5}",  # every fifth stay is a second one
            "age": int(age[place]),
            "sex": "f" if random.random() < 0.52 else "m",
            "ward": WARDS[ward[place]],
            "systolic": int(systolic[place]),
            "creatinine": float(creatinine[place]),
            "diabetes": "yes" if diabetes[place] else "no",
            "outcome": "readmitted" if readmitted[place] else "well",
        }
        found.append({name: "" if random.random() < MISSING.get(name, 0) else value for name, value in row.items()})
    return found


def write(path: Path, rows: list[dict[str, Any]], columns: list[str], decimal_comma: bool = False) -> None:
    """A table; with decimal commas, cells are divided by semicolons."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, delimiter=";" if decimal_comma else ",")
        writer.writerow(columns)
        for row in rows:
            cells = [str(row[name]) for name in columns]
            writer.writerow([cell.replace(".", ",") for cell in cells] if decimal_comma else cells)


def main(folder: Path) -> None:
    """Write all tables."""
    random = np.random.default_rng(20)
    for hospital, size in SIZES.items():
        columns = [str(name) for name in random.permutation(COLUMNS)]
        write(folder / f"{hospital}.csv", patients(hospital, size, random), columns, hospital == "west")
    known = [name for name in COLUMNS if name != "outcome"]
    write(folder.with_name(f"{folder.name}-new") / "north.csv", patients("new", 40, random), known)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "hospitals"))
