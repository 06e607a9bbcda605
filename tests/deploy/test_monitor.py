"""Health and metrics of a server and a site, read as Prometheus reads them, and that no records are in them."""

from __future__ import annotations

import io
import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from federations import federation

from sordino.deploy.monitor import SERVER, SITE, Monitor, WatchedCarrier, answering
from sordino.deploy.protocol.carrier import Failure, InProcessCarrier
from sordino.errors import UserError
from sordino.federation.rounds import RoundWatch
from sordino.util.json_lines import JsonLines

SAMPLE = re.compile(r'^(\w+)(\{version="[^"]+"\})? ([0-9.e+]+)$')


def samples(text: str) -> dict[str, float]:
    """Values in Prometheus's text format: each metric has a meaning and a type before its value."""
    found, announced = {}, {}
    for line in text.splitlines():
        if line.startswith("# "):
            _, what, name, rest = line.split(" ", 3)
            announced.setdefault(name, {})[what] = rest
        else:
            name, _, value = SAMPLE.fullmatch(line).groups()
            assert announced[name].keys() == {"HELP", "TYPE"}
            assert announced[name]["TYPE"] == ("counter" if name.endswith("_total") else "gauge")
            found[name] = float(value)
    return found


def test_health_and_metrics_are_answered_at_their_address_and_nothing_else() -> None:
    well = True
    monitor = Monitor(SITE, lambda: well)
    monitor.set("sordino_site_connected", 1)
    monitor.add("sordino_site_messages_total", 3)
    from socket import create_server

    with create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with answering(monitor, ("127.0.0.1", port)):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
            assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            found = samples(reply.read().decode())
        assert (found["sordino_site_connected"], found["sordino_site_messages_total"]) == (1, 3)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as reply:
            assert json.loads(reply.read())["status"] == "ok"
        well = False
        with pytest.raises(urllib.error.HTTPError) as failing:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health")
        assert failing.value.code == 503
        with pytest.raises(urllib.error.HTTPError) as unknown:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/site.db")
        assert unknown.value.code == 404
        with pytest.raises(UserError, match="--monitor"), answering(monitor, ("127.0.0.1", port)):
            pass


def test_a_server_counts_its_sites_messages_and_rounds(tmp_path: Path) -> None:
    from sordino.deploy.server.coordinator import start

    with federation(tmp_path) as made:
        monitor = Monitor(SERVER)
        lost = iter([Failure("gone")])
        carrier = InProcessCarrier(made.sites, lambda node, request, answer: next(lost, None) or answer())
        watch = monitor.watching(RoundWatch(lambda report: None))
        start(made.experiment, made.members, WatchedCarrier(carrier, monitor), made.store, watch, made.told.append)
    found = samples(monitor.text())
    assert found["sordino_server_sites_connected"] == 3
    assert found["sordino_server_rounds_done"] == made.experiment.rounds
    assert found["sordino_server_requests_total"] == found["sordino_server_answers_total"] + 1


def test_no_metric_is_about_records_or_time_at_work() -> None:
    """What a site's metrics hold is what the network shows: connections and messages."""
    assert {metric.name for metric in SITE} == {
        *("sordino_site_connected", "sordino_site_connections_total", "sordino_site_messages_total"),
    }
    for metric in (*SITE, *SERVER):
        assert not re.search("epsilon|budget|refus|misfit|duration|accuracy|bytes|memory|record", metric.name)


def test_lines_of_json_hold_sentences_and_rounds(tmp_path: Path) -> None:
    stream = io.StringIO()
    log = JsonLines("server", stream)
    log.say('a "sentence"\nof two lines')
    with federation(tmp_path, rounds=1) as made:
        from sordino.deploy.server.coordinator import start

        start(made.experiment, made.members, InProcessCarrier(made.sites), made.store, log.run(None, 1), log.say)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert lines[0]["text"] == 'a "sentence"\nof two lines'
    assert {line["service"] for line in lines} == {"server"}
    (found,) = [line for line in lines if line["event"] == "round"]
    assert (found["round"], found["rounds"], found["sites"]) == (1, 1, 3)
    assert set(found["epsilon"]) == {"outsider", "peer", "server"}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line["time"]) for line in lines)
