"""A clock that is wrong is told by how much; a clock that is right is no reason."""

from __future__ import annotations

import datetime
import email.utils

import httpx
import pytest

from sordino.flower.node import _explain_clock_skew


def refused(seconds: float, status: int = httpx.codes.UNAUTHORIZED) -> httpx.HTTPStatusError:
    """What a site meets whose clock is so many seconds ahead of the server's."""
    there = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
    request = httpx.Request("POST", "https://localhost")
    response = httpx.Response(status, headers={"date": email.utils.format_datetime(there)}, request=request)
    return httpx.HTTPStatusError("refused", request=request, response=response)


@pytest.mark.parametrize(("seconds", "side"), [(100, "ahead of"), (-400, "behind"), (-86400, "behind")])
def test_a_wrong_clock_is_told(seconds: float, side: str) -> None:
    sentence = _explain_clock_skew(refused(seconds))
    assert sentence is not None
    assert side in sentence
    assert "NTP" in sentence


@pytest.mark.parametrize(("seconds", "status"), [(0, httpx.codes.UNAUTHORIZED), (100, httpx.codes.FORBIDDEN)])
def test_other_refusals_are_not_the_clock_s(seconds: float, status: int) -> None:
    assert _explain_clock_skew(refused(seconds, status)) is None
    assert _explain_clock_skew(ValueError("another")) is None
