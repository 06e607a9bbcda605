"""The commands of a deployment as their users meet them, mistakes first; nothing is started here."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from killing import wait_until

from sordino import cli
from sordino.deploy.protocol.roster import Member, roster_toml
from sordino.deploy.server.journal import FILE as JOURNAL
from sordino.deploy.server.journal import DeploymentJournal
from sordino.deploy.site.site import Site
from sordino.errors import UserError
from sordino.flower import keys, trial
from sordino.privacy.unit import Unit
from sordino.store.store import NewRun, Store

EXPERIMENT = 'method = "{method}"\ndata = "digits"\nmodel = "logistic"\nrounds = 2\nepsilon = 8\ndelta = 1e-5\n'
DECLARED = 'clients = 3\nshape = [1, 8, 8]\nlabels = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]\n'


@pytest.fixture
def sordino(tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder: its exit code, what it printed, what it complained of."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["sordino", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return run


def refusal(result: tuple[int, str, str]) -> str:
    """The one sentence of a command that was refused."""
    code, out, complaint = result
    assert code == 2, complaint
    lines = complaint.strip().splitlines()
    assert lines[-1].startswith("Error: ")
    assert "Traceback" not in complaint
    assert out == ""
    return lines[-1]


def table(folder: Path, name: str) -> Path:
    rows = [f"{i % 7},{i % 3},{'yes' if i % 2 else 'no'}" for i in range(40)]
    path = folder / name
    path.write_text("a,b,outcome\n" + "\n".join(rows) + "\n")
    return path


def test_a_missing_extra_is_told_before_anything_is_done(sordino, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "flwr" else found(name))
    for command in (
        ("deploy", "none.toml", "--local", "3"),
        ("serve", "none.toml"),
        ("serve", "init", "--host", "localhost"),
        ("site", "init", "--name", "a", "--data", "none.csv"),
        ("join", "none", "--server", "localhost:1", "--ca", "none.pem"),
    ):
        assert 'pip install "sordino[deploy]"' in refusal(sordino(*command))
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedavg", ""),
        ("adadp-cfl", 'variant = "paper"\n'),
        ("fedglp-adp", 'variant = "paper"\n'),
        ("rpdp-fl", ""),
        ("dp-fedavg", 'privacy = "none"\n'),
    ],
)
def test_what_cannot_be_deployed_is_refused_with_a_sentence(sordino, method, more):
    text = EXPERIMENT.format(method=method)
    if "none" in more:
        text = text.replace("epsilon = 8\ndelta = 1e-5\n", "")
    Path("e.toml").write_text(text + more)
    assert refusal(sordino("deploy", "e.toml", "--local", "3", "--json"))
    assert not list(Path(".sordino/trials").iterdir())
    Path("e.toml").write_text(text + more + DECLARED)
    assert refusal(sordino("serve", "e.toml"))


READS = """
from dataclasses import dataclass
from sordino.methods.dp_fedavg import DPFedAvg

@dataclass(frozen=True)
class Reads(DPFedAvg):
    def run(self, fed, model):
        server = fed.state(model=model)
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": 1.0})
            server.model = server.model + got.rows("update").median(dim=0).values
"""


def test_a_method_that_reads_single_messages_is_refused_under_the_secure_sum(sordino, monkeypatch, tmp_path):
    Path("reads.py").write_text(READS)
    monkeypatch.syspath_prepend(tmp_path)
    text = EXPERIMENT.format(method="reads:Reads")
    Path("e.toml").write_text(text)
    Path("declared.toml").write_text(text + DECLARED)
    for command in (("deploy", "e.toml", "--local", "3"), ("serve", "declared.toml")):
        sentence = refusal(sordino(*command))
        assert "reads each client's update by itself" in sentence
        assert 'protect_from = "server"' in sentence
    Path("e.toml").write_text(text + DECLARED + 'protect_from = "server"\n')
    assert "No site has been added" in refusal(sordino("serve", "e.toml"))


def test_facts_that_are_not_declared_are_asked_for(sordino):
    Path("e.toml").write_text(EXPERIMENT.format(method="dp-fedavg"))
    assert "clients" in refusal(sordino("serve", "e.toml"))
    Path("e.toml").write_text(EXPERIMENT.format(method="dp-fedavg") + "clients = 3\n")
    assert "shape" in refusal(sordino("serve", "e.toml"))


def test_an_experiment_and_sites_are_needed(sordino):
    assert "--local 5" in refusal(sordino("deploy"))
    assert "--local 5" in refusal(sordino("deploy", "e.toml"))
    assert "no experiment file" in refusal(sordino("deploy", "e.toml", "--local", "3"))
    assert "--resume RUN" in refusal(sordino("serve", "--address", "127.0.0.1:9000"))
    Path("e.toml").write_text(EXPERIMENT.format(method="dp-fedavg") + DECLARED)
    assert "serve add" in refusal(sordino("serve", "e.toml"))
    assert "HOST:PORT" in refusal(sordino("serve", "e.toml", "--address", "nowhere"))


def test_a_server_and_its_sites_are_made(sordino, tmp_path):
    assert "server/ca.pem" in sordino("serve", "init", "--host", "fl.example.org")[1]
    assert "not replaced" in refusal(sordino("serve", "init", "--host", "fl.example.org"))
    for name in ("north", "south"):
        made = ("site", "init", "--name", name, "--data", str(table(tmp_path, f"{name}.csv")), "--label", "outcome")
        code, out, _ = sordino(*made)
        assert code == 0
        assert f"{name}.pub" in out
        assert (Path(name) / keys.NODE_KEY).exists()
        assert "already" in refusal(sordino(*made))
    code, out, _ = sordino("serve", "add", "north/north.pub", "south/south.pub", "--json")
    assert [row["name"] for row in json.loads(out)["sites"]] == ["north", "south"]
    code, out, _ = sordino("serve", "roster")
    assert out.count("[[site]]") == 2
    Path("north/roster.toml").write_text(out)
    rules = Path("north/site.toml")
    rules.write_text(rules.read_text().replace("# roster =", 'roster = "roster.toml"'))
    code, out, _ = sordino("site", "status", "north", "--json")
    found = json.loads(out)
    assert (found["name"], found["runs"], found["promised"]) == ("north", [], "outsider")
    assert list(found["roster"]) == ["north", "south"]
    assert found["roster"]["north"] == found["fingerprint"]
    assert found["roster"]["south"] in sordino("site", "status", "north")[1]
    code, out, _ = sordino("site", "status", "south")
    assert "not taken part" in out
    assert "No roster is pinned" in out
    assert found["fingerprint"] not in out


def test_a_certificate_is_renewed_by_a_command(sordino):
    assert "server has no ca.key" in refusal(sordino("serve", "renew"))
    sordino("serve", "init", "--host", "fl.example.org")
    before = Path("server/server.pem").read_bytes()
    code, out, _ = sordino("serve", "renew", "--host", "new.example.org")
    assert code == 0
    assert "Sites need nothing new" in out
    assert Path("server/server.pem").read_bytes() != before
    code, out, _ = sordino("serve", "renew", "--json")
    assert (code, json.loads(out)["hosts"]) == (0, [])
    assert "neither a host name nor an IP address" in refusal(sordino("serve", "renew", "--host", "a b"))


def test_mistakes_of_a_site_are_told_in_a_sentence(sordino, tmp_path):
    sordino("serve", "init", "--host", "localhost")
    ca = ("--ca", "server/ca.pem")
    server = ("--server", "localhost:8000")
    assert "site init" in refusal(sordino("join", "nowhere", *server, *ca))
    assert "site init" in refusal(sordino("join", "server", *server, *ca))
    assert "site init" in refusal(sordino("site", "status", "nowhere"))
    assert "no records at" in refusal(sordino("site", "init", "--name", "a", "--data", "none.csv"))
    assert "A-Z" in refusal(sordino("site", "init", "--name", "../a", "--data", "none.csv"))
    data = str(table(tmp_path, "a.csv"))
    assert refusal(sordino("site", "init", "--name", "a", "--data", data, "--label", "outcome", "--max-epsilon", "-1"))
    assert not Path("a").exists()
    assert "did you mean 'outcome'" in refusal(
        sordino("site", "init", "--name", "a", "--data", data, "--label", "outcom")
    )
    assert not Path("a").exists()
    for host in ("two words", "", "a-", "http://a", "a/b", "a:1"):
        assert "neither a host name" in refusal(sordino("serve", "init", "--host", host, "--folder", "other"))
    sordino("site", "init", "--name", "a", "--data", data, "--label", "outcome")
    assert "ca.pem" in refusal(sordino("join", "a", *server, "--ca", "none.pem"))
    assert "no certificate in PEM" in refusal(sordino("join", "a", *server, "--ca", "a/a.pub"))
    assert "HOST:PORT" in refusal(sordino("join", "a", "--server", "localhost", *ca))
    (Path("a") / "site.toml").write_text("max_epsilon = true\n")
    assert "site.toml" in refusal(sordino("join", "a", *server, *ca))


def test_a_site_whose_witness_is_lost_is_accepted_by_its_owner(sordino, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    data = str(table(tmp_path, "a.csv"))
    made = ("site", "init", "--name", "a", "--data", data, "--label", "outcome")
    (tmp_path / "state").write_text("no folder")
    assert "witness" in refusal(sordino(*made))
    (tmp_path / "state").unlink()
    assert sordino(*made)[0] == 0
    assert "nothing to accept" in refusal(sordino("site", "accept", "a"))
    (witness,) = (tmp_path / "state").rglob("*.json")
    witness.unlink()
    sordino("serve", "init", "--host", "localhost")
    joined = sordino("join", "a", "--server", "localhost:8000", "--ca", "server/ca.pem")
    assert "sordino site accept" in refusal(joined)
    code, out, _ = sordino("site", "accept", "a", "--json")
    assert code == 0
    assert "used up" in json.loads(out)["accepted"]
    assert "takes part no more" in sordino("site", "status", "a")[1]
    assert witness.exists()


def test_help_names_the_commands_of_a_group(sordino):
    for group, words in (("serve", ("init", "add", "roster", "EXPERIMENT")), ("site", ("init", "status", "accept"))):
        _, out, _ = sordino(group, "--help")
        assert all(word in out for word in words)


def test_help_of_the_server_lists_the_options_of_serving_and_its_commands(sordino):
    code, out, _ = sordino("serve", "--help")
    assert code == 0
    options, commands = out.split("Commands:")
    for option in ("--address", "--resume RUN", "--wait", "--folder", "--store", "--json", "--help", "EXPERIMENT"):
        assert option in options
    assert options.count("--help") == 1
    assert [line.split()[0] for line in commands.splitlines() if line.strip()] == [
        *("init", "renew", "add", "roster", "install"),
    ]


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """A trial of two sites whose run was stopped after it began; the folders of sites that are started anew."""
    store = Store(tmp_path)
    name = store.create("dp-fedavg-deployed", NewRun("dp-fedavg", {}, "identity", "people", Unit.CLIENT, 2))
    where = tmp_path / trial.TRIALS / "1"
    members = [Member(f"site-{number}", bytes([number] * 32)) for number in range(2)]
    for member in members:
        (where / member.name).mkdir(parents=True)
        (where / member.name / "site.toml").touch()
    (where / trial.ROSTER).write_text(roster_toml(members))
    with contextlib.closing(DeploymentJournal(store.path(name))) as journal:
        journal.set_fact("roster", [[one.name, one.identity.hex()] for one in members])
        journal.set_fact("run", name)
    monkeypatch.setattr(trial, "run_processes", lambda _, folders, largest: contextlib.nullcontext(folders))
    monkeypatch.setattr(trial, "terms_of", lambda _: SimpleNamespace(largest_answer=1))
    return store, name, where


def test_a_trial_is_taken_up_by_its_roster(stopped, tmp_path):
    store, name, where = stopped
    (where / "site-0-copy").mkdir()
    (where / "site-0-copy" / "site.toml").touch()
    other = tmp_path / trial.TRIALS / "0"
    other.mkdir()
    (other / trial.ROSTER).write_text("damaged")
    with trial.resume_trial(name, tmp_path) as found:
        assert found.folders == [where / "site-0", where / "site-1"]
    with store.lock(name), pytest.raises(UserError, match="already running"), trial.resume_trial(name, tmp_path):
        pass


def test_a_trial_that_was_stopped_before_it_began_is_told(stopped, tmp_path):
    store, name, _ = stopped
    (store.path(name) / JOURNAL).unlink()
    DeploymentJournal(store.path(name)).close()
    with pytest.raises(UserError, match="stopped before it began"), trial.resume_trial(name, tmp_path):
        pass


def test_a_site_of_a_trial_that_does_not_open_is_told_at_once(tmp_path):
    folders = [tmp_path / "site-0", tmp_path / "site-1"]
    for folder in folders:
        folder.mkdir()
    data = np.random.default_rng(0)
    np.savez(folders[0] / "data.npz", x=data.random((9, 2), dtype=np.float32), y=np.arange(9) % 3)
    Site.create(folders[0], "site-0", Path("data.npz"), witness=Path("..", "witness"))
    (witness,) = (tmp_path / "witness").iterdir()
    witness.unlink()
    sites = trial.SiteProcesses(folders, trial.ServerAddress("127.0.0.1:1", tmp_path / "ca.pem"))
    told = []
    sites.start(SimpleNamespace(release_after_fork=lambda: None))
    try:
        with sites.report_ended(told.append):
            wait_until(lambda: len(told) == 2, "both sites have ended")
    finally:
        sites.stop()
    first, second = sorted(told)
    assert first.startswith("site-0 does not take part: The witness ")
    assert "is gone: the site's folder may have been restored" in first
    with pytest.raises(UserError) as caught:
        Site.open(folders[1])
    assert second == f"site-1 does not take part: {caught.value}"
    assert told == list(dict.fromkeys(told)), "once each"


def test_a_site_of_a_trial_that_is_killed_is_told(tmp_path):
    assert trial._explain_end(tmp_path / "site-0", -9) == "The process of site-0 was killed by the signal SIGKILL."


def test_a_trial_that_never_began_leaves_no_copies_of_data(tmp_path, monkeypatch):
    made = []

    def lay_out(experiment, where, sites):
        made.append(where)
        (where / "data.npz").touch()
        return SimpleNamespace(rounds=1), [], []

    monkeypatch.setattr(trial, "lay_out", lay_out)
    monkeypatch.setattr(trial.coordinator, "check_deployable", lambda _: None)
    monkeypatch.setattr(trial, "run_processes", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(trial, "terms_of", lambda _: SimpleNamespace(largest_answer=1))
    with pytest.raises(KeyboardInterrupt), trial.open_trial(None, 2, tmp_path):
        raise KeyboardInterrupt
    assert not made[0].exists()
