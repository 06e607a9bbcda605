"""Tasks, each something to predict for a record.

A task knows its loss, its metrics, the width of a network's output and the checks of its targets. Everything else asks
the task, and has no case for one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sordino.tasks.classification import Classification
from sordino.tasks.next_token import NextToken
from sordino.tasks.regression import Regression
from sordino.tasks.several import SeveralLabels, SeveralNumbers
from sordino.tasks.survival import Survival
from sordino.tasks.task import Task

__all__ = [
    "TASKS",
    "Classification",
    "NextToken",
    "Regression",
    "SeveralLabels",
    "SeveralNumbers",
    "Survival",
    "Task",
    "read_task",
]

TASKS = (Classification.name, Regression.name, Survival.name, SeveralLabels.name)
"""Names of the kinds of tasks."""


def read_task(document: Mapping[str, Any]) -> Task:
    """The task that `Task.document` wrote, for example into the file of a run's models."""
    about = {key: value for key, value in document.items() if key not in ("task", "schema")}
    if "parts" in document:
        kind = SeveralLabels if document["task"] == SeveralLabels.name else SeveralNumbers
        parts = tuple(read_task(part) for part in document["parts"].values())
        return kind(tuple(document["parts"]), parts, document["by"])
    if document.get("task") == Regression.name:
        return Regression(**about)
    if document.get("task") == Survival.name:
        return Survival(tuple(about["cuts"]), about["unit"])
    if "vocabulary" in document:
        return NextToken(document["vocabulary"], document["length"])
    return Classification(tuple(document["classes"]), document["positive"])
