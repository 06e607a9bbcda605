"""Predict with an exported model and without Sordino: `python onnx_predict.py north.onnx new-patients.csv`.

The file of the model says how a row becomes the network's numbers; this program does it with onnxruntime alone.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


def compared(text: str, fold_case: bool) -> str:
    """A cell of a category as values are compared: 1 and 1.0 are one, and so are Yes and yes where that is said."""
    try:
        number = float(text)
    except ValueError:
        number = float("inf")
    if number.is_integer():
        return str(int(number))
    return text.casefold() if fold_case else text


def number_in(text: str, decimal: str, units: dict[str, float]) -> float:
    """A cell of a number; one with a unit behind it is multiplied by that unit's factor."""
    together = "".join(text.replace(decimal, ".").split()).casefold()
    for unit, factor in units.items():
        if together.endswith(unit):
            return float(together.removesuffix(unit)) * factor
    return float(together)


def encoded(row: dict[str, str], about: dict[str, Any], decimal: str) -> list[float]:
    """The numbers of one row, in the order of the network's inputs."""
    numbers = []
    for feature in about["recipe"]:
        text = row[feature["column"]].strip()
        absent = text in ("", *about["meaning"]["schema"]["missing_cells"])
        codes = feature.get("missing_codes", [])
        if absent or (codes and number_in(text, decimal, feature.get("units", {})) in codes):
            if feature["missing"] is None:
                raise ValueError(f"the column {feature['column']!r} must have a value")
            numbers.append(feature["missing"])
        elif "equals" in feature:
            spellings = (feature["equals"], *feature.get("or_equals", ()))
            found = float(compared(text, feature["fold_case"]) in spellings)
            numbers.append((found - feature.get("subtract", 0.0)) / feature.get("divide", 1.0))
        elif "divide" in feature:
            value = number_in(text, decimal, feature.get("units", {}))
            if "low" in feature:
                value = min(max(value, feature["low"]), feature["high"])
            numbers.append((value - feature["subtract"]) / feature["divide"])
        else:  # it says that a value is missing
            numbers.append(0.0)
    return numbers


def predictions(model: Path, records: Path) -> list[dict[str, float]]:
    """The probability of each class, for each row of a table."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["sordino"])
    schema = about["meaning"]["schema"]
    written = schema["files"].get(about["client"], schema)
    with records.open(newline="", encoding=written["encoding"].replace("utf-8", "utf-8-sig")) as stream:
        rows = list(csv.DictReader(stream, delimiter=written["delimiter"]))
    x = np.array([encoded(row, about, written["decimal"]) for row in rows], dtype=np.float32)
    (said,) = session.run(["probabilities"], {"records": x})
    return [dict(zip(about["meaning"]["classes"], map(float, one), strict=True)) for one in said]


if __name__ == "__main__":
    for said in predictions(Path(sys.argv[1]), Path(sys.argv[2])):
        print(max(said, key=lambda name: said[name]), {name: round(value, 4) for name, value in said.items()})
