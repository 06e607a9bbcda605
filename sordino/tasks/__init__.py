"""Tasks, each something to predict for a record.

A task knows its loss, its metrics, the width of a network's output and the checks of its targets. Everything else asks
the task, and has no case for one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sordino.tasks.classification import Classification
from sordino.tasks.next_token import NextToken
from sordino.tasks.task import Task

__all__ = ["Classification", "NextToken", "Task", "read_task"]


def read_task(document: Mapping[str, Any]) -> Task:
    """The task that `Task.document` wrote, for example into the file of a run's models."""
    if "vocabulary" in document:
        return NextToken(document["vocabulary"], document["length"])
    return Classification(tuple(document["classes"]), document["positive"])
