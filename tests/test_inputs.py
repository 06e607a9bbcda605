"""Whatever is given to the command line, it works or is refused in one sentence; never a traceback, never for ever."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from fuzzing import trials
from helpers import COMMAND, QUICK, command, process, refused

from sordino.cli import main

RECORD = ("--method=dp-fedavg-record",)
CLUSTERS = ("--method=adadp-cfl",)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"rounds = 9" + b"9" * 5000, "not valid TOML"),
        (b"[set]\nepochs = 0x" + b"f" * 6000, "epochs' has a number beyond 64 bits"),
        (b"a = " + b"[" * 3000 + b"]" * 3000, "nested too deeply"),
        (b".".join([b"a"] * 3000) + b" = 1", "nested too deeply"),
        (b'data = "a\\u0000b"', "'data' has a zero byte"),
        ("data = 'é'".encode("latin-1"), "not valid TOML"),
        (b"data = '" + b"y" * 5000 + b"/'", "There is no folder yyy"),
    ],
)
def test_a_wrong_file_is_told_in_one_sentence(content: bytes, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_bytes(content + b"\n")
    sentence = refused("run", file, "--store", tmp_path / "store")
    assert expected in sentence
    assert len(sentence) < 500


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[" * 99_999, "nested too deeply"),
        ('{"kind": "power", "coefficients": [1, NaN], "low": 1, "high": 2, "clip_low": 1, "clip_high": 2}', "finite"),
        ('{"kind": "power", "coefficients": [1, 1], "low": 2, "high": 1, "clip_low": 1, "clip_high": 2}', "lower end"),
        ('{"kind": "power", "coefficients": [1, 1], "low": 0, "high": 1, "clip_low": 1, "clip_high": 2}', "above 0"),
    ],
)
def test_a_file_that_is_no_curve(content: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "curve.json"
    file.write_text(content)
    assert expected in refused("curve", "show", file)


def test_what_is_merely_unwise_is_done(tmp_path: Path) -> None:
    """A budget that goes almost whole to the grouping, a tiny one, and a learning rate at which models diverge."""
    rest = (*QUICK, "--set=records=160", "--store", tmp_path, "--json")
    grouped = command("run", *CLUSTERS, "--set=cluster_share=0.9999", "--set=clipping=fixed", *rest).document
    assert grouped["epsilon"]["server"] <= 8 * (1 + 1e-9)
    tiny = command("run", *RECORD, "--epsilon=0.001", *rest).document
    assert 0 < tiny["epsilon"]["server"] <= 0.001
    wild = command("run", "--method=acdp-pfsd", "--set=rate=1e18", "--set=clip=1e18", *rest)
    assert wild.code == 0


def test_the_accountant_of_the_papers_reaches_large_budgets() -> None:
    """Its noise for a published epsilon of 1e5: the figure comes back."""
    from sordino.privacy.accounting.gaussian import rdp_epsilon, rdp_multiplier

    assert rdp_epsilon(rdp_multiplier(1e5, 10, 1e-5), 10, 1e-5) == pytest.approx(1e5, rel=0.05)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1e30, 3.0])
def test_an_agent_sees_numbers_whatever_a_model_does(loss: float) -> None:
    from sordino.parts.ddpg import Ddpg
    from sordino.parts.ppo import Ppo, observation

    seen = observation(torch.tensor([loss]), torch.tensor(math.nan), 1e6)
    assert seen.tolist() == [3.0 if loss == 3.0 else 0.0 if loss == -math.inf else 1e6, 0.0]
    random, calm = torch.Generator().manual_seed(0), torch.tensor([1.0, 0.5])
    ppo, ddpg = Ppo(replay=2), Ddpg(warm=0)
    mind, other = ppo.begin(random), ddpg.begin(random)
    for before, after in itertools.pairwise([calm, seen, calm, seen, seen, calm, calm]):
        reward = float(before[0] - after[0])
        mind = ppo.remember(mind, before, 0.5, 0.0, reward, after)
        other = ddpg.remember(other, before, 0.5, reward, after, random)
        assert 0 < ppo.act(mind, after, random)[0] < 1
        action, other = ddpg.act(other, after, random)
        assert -1 <= action <= 1


@pytest.mark.parametrize("variant", ["sound", "paper"])
def test_a_diverged_model_does_not_stop_the_agent(variant: str, tmp_path: Path) -> None:
    arguments = ("--method=acdp-pfsd", "--set=rate=1e18", "--set=clipping.high=1e18", f"--variant={variant}", *QUICK)
    assert command("run", *arguments, "--rounds=4", "--store", tmp_path, "--json").code == 0


PLAIN_COMMANDS = """
import contextlib, os, sys
from sordino.cli import main
for arguments in sys.argv[1:]:
    sys.argv = ["sordino", *arguments.split()]
    with contextlib.suppress(SystemExit):
        main()
"""


def commands_in(folder: Path) -> list[str]:
    quick = " ".join((*QUICK, f"--store={folder}"))
    return [
        *("--help", "run --help", "methods", "data", "data show digits --clients=8", "plan", "curve show mnist"),
        *(f"run --method=fedavg {quick}", f"compare --methods=local,fedavg --seeds=2 {quick}"),
        *(f"runs --store={folder}", "run é.toml"),
    ]


def test_output_that_takes_only_ascii(tmp_path: Path) -> None:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        for arguments in commands_in(tmp_path):
            with mock.patch.object(sys, "argv", ["sordino", *arguments.split()]), contextlib.suppress(SystemExit):
                main()
    for stream in (out, err):
        stream.flush()
    check_ascii(out.buffer.getvalue(), err.buffer.getvalue())


@pytest.mark.slow
def test_a_terminal_that_knows_only_ascii(tmp_path: Path) -> None:
    commands = commands_in(tmp_path)
    plain = os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_COMMANDS, *commands], env=plain, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    check_ascii(done.stdout, done.stderr)


def check_ascii(out: bytes, err: bytes) -> None:
    shown, told = out.decode("ascii"), err.decode("ascii")
    assert "Traceback" not in told
    assert "There is no experiment file ?.toml." in told
    assert "epsilon inf" in told
    for piece in (" inf |", "+-", " - |", "mean +- spread"):
        assert piece in shown
    framed = [line for line in shown.splitlines() if "-digits-" in line and "|" in line]
    assert len(framed) > 1
    assert len({line.rindex("|") for line in framed}) == 1  # columns stay in line


def test_names_that_look_like_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    outcome = command("compare", "--methods=fedavg[epochs=1]", "--seeds=1", *QUICK, "--store", tmp_path / "[/x]")
    assert outcome.code == 0
    assert "fedavg[epochs=1], seed 0: round 2/2" in outcome.err
    assert "[/x]" in outcome.out.replace("\n", "")


def test_what_the_accounting_library_logs_does_not_reach_users() -> None:
    script = """
import sys
if "quiet" in sys.argv: import sordino.privacy.accounting.gaussian
from dp_accounting.rdp import rdp_privacy_accountant
rdp_privacy_accountant.compute_epsilon([2.0], [-1e-3], 1e-5)
"""
    assert "Negative Renyi divergence" in process(script).err
    assert process(script, "quiet").err == ""


def test_a_command_without_arguments_shows_its_help() -> None:
    outcome = process(COMMAND, "curve")
    assert (outcome.code, outcome.err) == (2, "")
    assert "Usage:" in outcome.out


def test_fuzzed_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the slow parts of accounting and drawing left out: the inputs reach all the rest."""
    monkeypatch.setattr("sordino.privacy.accounting.sampled_gaussian._by_distribution", lambda recipe, delta: math.inf)
    monkeypatch.setattr("sordino.privacy.accounting.gaussian.OPACUS_ORDERS", (2, 8, 32))
    monkeypatch.setattr("sordino.parts.clustering.draw", lambda *_: None)
    survive(0, 40, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(1, 3))
def test_many_fuzzed_inputs(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    survive(seed, 500, tmp_path, monkeypatch)


def survive(seed: int, count: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Try `count` commands: each must work, or be refused in one sentence, or in one for each problem of own files."""
    monkeypatch.chdir(folder)
    codes = []
    for arguments in itertools.islice(trials(seed, folder), count):
        outcome = command(*arguments)
        told = outcome.err.splitlines()
        assert outcome.code in (0, 2), (arguments, outcome)
        if outcome.code == 2:
            assert told[0].startswith("Error: "), (arguments, told)
            assert all(line.startswith("- ") for line in told[1:]), (arguments, told)
        codes.append(outcome.code)
    assert min(codes.count(0), codes.count(2)) > count / 10  # neither all refused nor all accepted
