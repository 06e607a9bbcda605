"""Data: known data sets, a user's own files, and the deal of records to clients."""

from __future__ import annotations

from sordino.data.dataset import ClientData, Dataset, FederatedData
from sordino.data.download import get
from sordino.data.federate import federate
from sordino.data.sources import Entry, catalogue, load
from sordino.data.summary import Spread, Summary, draw, summary

__all__ = [
    "ClientData",
    "Dataset",
    "Entry",
    "FederatedData",
    "Spread",
    "Summary",
    "catalogue",
    "draw",
    "federate",
    "get",
    "load",
    "summary",
]
