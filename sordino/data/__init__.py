"""Data: known data sets, a user's own files, and the deal of records to clients."""

from __future__ import annotations

from sordino.data.dataset import ClientData, Dataset, FederatedData
from sordino.data.download import get
from sordino.data.federate import federate
from sordino.data.sources import CatalogueEntry, catalogue, load
from sordino.data.summary import DataSummary, Spread, draw, summary

__all__ = [
    "CatalogueEntry",
    "ClientData",
    "DataSummary",
    "Dataset",
    "FederatedData",
    "Spread",
    "catalogue",
    "draw",
    "federate",
    "get",
    "load",
    "summary",
]
