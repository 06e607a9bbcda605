"""Wrong inputs, each with its exit code and the sentence that says what was wrong: never a traceback."""

from __future__ import annotations

import os
import shlex
import sys
import tracemalloc
from pathlib import Path

import pytest
from fuzzing import MODULES
from helpers import command

SPLITS = """
import numpy as np

def short(labels, clients, rng):
    return np.zeros(3, dtype=int)

def beyond(labels, clients, rng):
    return np.arange(len(labels)) % (clients + 1)

def broken(labels, clients, rng):
    return 1 // 0

def fractions(labels, clients, rng):
    return rng.random(len(labels))
"""
ENDING = """
import sys
from dataclasses import dataclass
from torch import nn
from sordino.methods.dp_fedavg import DPFedAvg

def split(labels, clients, rng):
    sys.exit(0)

class Net(nn.Linear):
    def __init__(self, shape, classes):
        sys.exit(0)

class Forward(nn.Linear):
    def __init__(self, shape, classes):
        super().__init__(64, classes)
    def forward(self, x):
        sys.exit(0)

@dataclass(frozen=True)
class M(DPFedAvg):
    def __post_init__(self):
        sys.exit(0)

class Hook(DPFedAvg):
    def check_data(self, people):
        sys.exit(0)
"""
FILES = {
    ("schemas", "s.toml"): '[columns.x]\nkind = "number"\n',
    ("site-0", "site.toml"): "",
    ("own", "a.csv"): "x,sex,label\n1,m,0\n2,f,1\n",
    ("bare", "a.csv"): "x,label\n",
    ("alone", "a.csv"): "label\n0\n1\n",
    ("long", "a.csv"): f"x,label\n{'1' * 140_000},0\n2,1\n",
    ("arrays", "junk.npz"): "junk",
}
"""Data of the user's own, by folder and file."""
WRONG: list[tuple[str, int, str]] = [
    ("run --method=fedpda", 2, "no method 'fedpda'; did you mean 'feddpa'?"),
    ("run --set=tua=0.3 --method=feddpa", 2, "'tua'; did you mean 'tau'?"),
    ("run --set=method.lambda3=0.3 --method=feddpa", 2, "'lambda3'; did you mean 'lambda"),
    ("run --set=fedavg.rat=0.3", 2, "hyper-parameter of fedavg 'rat'; did you mean 'rate'?"),
    ("run --set=modle.hidden=3", 2, "'modle.hidden'; did you mean 'model.hidden'?"),
    ("run --model=mlp --set=model.hiden=3", 2, "'hiden'; did you mean 'hidden'?"),
    ("run --data=digist", 2, "no data set 'digist'; did you mean 'digits'?"),
    ("run --model=logistik", 2, "no model 'logistik'; did you mean 'logistic'?"),
    ("run --partition=dirichle:1", 2, "'dirichle'; did you mean 'dirichlet'?"),
    ("run --epsilon=0", 2, "epsilon cannot be 0.0"),
    ("run --epsilon=-2", 2, "epsilon cannot be -2.0"),
    ("run --epsilon=inf", 2, "epsilon cannot be inf"),
    ("run --epsilon=nan", 2, "epsilon cannot be nan"),
    ("run --noise-multiplier=0", 2, "noise_multiplier cannot be 0.0"),
    ("run --noise-multiplier=inf", 2, "noise_multiplier cannot be inf"),
    ("run --rounds=-3", 2, "rounds cannot be -3"),
    ("run --rounds=0", 2, "rounds cannot be 0"),
    ("run --clients=0", 2, "clients cannot be 0"),
    ("run --clients=5000", 2, "more clients (5000) than records"),
    ("run --delta=0", 2, "delta cannot be 0.0: it must be at least 1e-100."),
    ("run --delta=1", 2, "delta cannot be 1.0"),
    ("run --delta=0.1 --clients=10", 2, "delta = 0.1 is vacuous for 10 clients"),
    ("run --epsilon=1 --noise-multiplier=1", 2, "either epsilon or noise_multiplier, not both"),
    ("run --variant=papre", 2, "variant cannot be 'papre': it must be 'sound' or 'paper'"),
    ("run --protect-from=all", 2, "protect_from cannot be 'all'"),
    ("run --participation=0", 2, "participation cannot be 0.0"),
    ("run --workers=0", 2, "workers cannot be 0"),
    ("run --seed=-1", 2, "seed cannot be -1"),
    ("run --set=tau", 2, "--set wants key=value, not 'tau'"),
    ("run --set=clip=1 --set=clip=2", 2, "clip is given twice, as 1 and as 2: leave one of them out."),
    ("run --set=clip=1 --set=method.clip=2", 2, "clip and method.clip are the same setting, given as 1 and as 2"),
    (
        "run --set=evaluate-every=1 --set=evaluate_every=2",
        2,
        "evaluate-every and evaluate_every are the same setting, given as 1 and as 2",
    ),
    ("curve fit x.json --set=rate=0.1 --set=rate=0.2", 2, "rate is given twice, as 0.1 and as 0.2"),
    ("run --set=tau=much --method=feddpa", 2, "hyper-parameter tau cannot be 'much'"),
    ("run --set=batch=0", 2, "hyper-parameter batch cannot be 0"),
    ("run --set=epochs=-1", 2, "hyper-parameter epochs cannot be -1"),
    ("run --set=rate=0", 2, "hyper-parameter rate cannot be 0: it must be at least 1e-18."),
    ("run --set=clip=0", 2, "hyper-parameter clip cannot be 0"),
    ("run --set=tau=nan --method=feddpa", 2, "hyper-parameter tau cannot be nan"),
    ("run --set=device=tpu", 2, "device 'tpu' cannot be used here"),
    ("run --set=minimum_cohort=9 --clients=8", 2, "minimum_cohort is 9, but a round has 8 clients"),
    ("run --seed=-1 --set=records=100", 2, "seed cannot be -1"),
    ("run --seed=9223372036854775808", 2, "number beyond 64 bits"),
    ("run --epsilon=1e-300", 2, "epsilon cannot be 1e-300"),
    ("run --epsilon=1e300 --method=dp-fedavg-record", 2, "epsilon cannot be 1e+300"),
    ("run --delta=1e-300", 2, "delta cannot be 1e-300"),
    ("run --noise-multiplier=1e300", 2, "noise_multiplier cannot be 1e+300"),
    ("run --set=rate=1e300", 2, "rate cannot be 1e+300"),
    ("run --set=rate=1e-300", 2, "rate cannot be 1e-300"),
    ("run --set=clip=1e300", 2, "clip cannot be 1e+300"),
    ("run --method=adadp-cfl --set=dimensions=-1", 2, "dimensions cannot be -1"),
    ("run --method=adadp-cfl --set=vectors=0", 2, "vectors cannot be 0"),
    ("run --method=adadp-cfl --set=angle=nan", 2, "angle cannot be nan"),
    ("run --method=adadp-cfl --set=cluster_share=1", 2, "cluster_share cannot be 1"),
    ("run --set=epochs=10000000000000000000000", 2, "epochs' has a number beyond 64 bits"),
    ("run --set=epochs=1000000000", 2, "epochs cannot be 1000000000"),
    ("run --rounds=1000000000", 2, "rounds cannot be 1000000000"),
    ("run --clients=10000000000", 2, "clients cannot be 10000000000"),
    ("run --clients=1000000000", 2, "more clients (1000000000) than records"),
    ("run --workers=1000000", 2, "workers cannot be 1000000"),
    (
        "run --set=clipping=ppo --set=clipping.low=2 --set=clipping.high=2",
        2,
        "clipping.low is 2 and clipping.high is 2",
    ),
    ("run --method=adadp-cfl --set=clipping.low=20", 2, "clipping.low is 20 and clipping.high is 10"),
    ("run --set=clipping=ppo --set=clipping.share=0.5", 2, "clipping.share cannot be 0.5"),
    ("run --method=acdp-pfsd --set=alpha=nan", 2, "alpha cannot be nan"),
    ("run --method=fedglp-adp --set=moderate_epsilon=0", 2, "moderate_epsilon cannot be 0"),
    ("run --method=dp-fedavg-record '--set=budgets='\"'\"'1e300:1'\"'\"''", 2, "every epsilon must lie between"),
    ("run --method=dp-fedavg-record '--set=budgets='\"'\"'8:1e300,1:1e300'\"'\"''", 2, "is not understood"),
    ("run --variant=paper --epsilon=0.01 --method=feddpa", 2, "cannot print epsilon = 0.01"),
    ("run --model=mlp --set=model.hidden=1000000000", 2, "this machine has"),
    ("run --model=mlp --set=model.hidden=1000000000000", 2, "positive widths of at most 1,000,000,000"),
    ("run --set=device=meta", 2, "computes nothing"),
    ("run '--data=~nobody-here/x'", 2, "There is no folder ~nobody-here/x"),
    ("run --data=" + "y" * 5000 + "", 2, "There is no data set 'yyy"),
    ("run --method=syntax:M", 2, "'syntax' cannot be imported: SyntaxError"),
    ("run --method=leaving:M", 2, "'leaving' cannot be imported: SystemExit"),
    ("run --method=lacking:M", 2, "'lacking' cannot be imported: ModuleNotFoundError"),
    ("run --method=raising:M", 2, "The method 'raising:M' cannot be made: RuntimeError: one two"),
    ("run --method=raising:Net", 2, "not a method"),
    ("run --method=sordino.method:Method", 2, "it has no `run`"),
    ("run --method=raising:Untyped --set=odd=3", 2, "types that are not known"),
    ("run --model=raising:Net", 2, "The model 'raising:Net' cannot be made: RuntimeError: one two"),
    ("run --model=raising:Wants", 2, "missing a required argument: 'more'"),
    ("run --rounds=many", 2, "Invalid value for '--rounds'"),
    ("run --nothing", 2, "No such option"),
    ("nothing", 2, "No such command 'nothing'"),
    ("plan --parameters=-3", 2, "Invalid value for '--parameters'"),
    ("plan --rounds=10000000000000000000000", 2, "number beyond 64 bits"),
    ("plan --noise-multiplier=1e-300", 2, "noise_multiplier cannot be 1e-300"),
    ("compare --seeds=10000000000000000000000", 2, "at most 1,000"),
    ("compare --picture=x.nothing", 2, "'.nothing' is no kind of picture"),
    ("compare --picture=/dev/null/x.png", 2, "/dev/null/x.png cannot be written"),
    ("curve fit .", 2, "is a folder"),
    ("curve fit /dev/null/x.json", 2, "cannot be written"),
    ("curve fit x.json --clips=nan", 2, "every number must be above 0 and finite"),
    ("curve fit x.json --seeds=-1", 2, "at least one seed"),
    ("data get nothing", 2, "no data set 'nothing'"),
    ("run --method=FedDPA", 2, "did you mean 'feddpa'?"),
    ("run --set=persnal=blend", 2, "no hyper-parameter of dp-fedavg 'persnal'; did you mean 'personal'?"),
    ("run --set=tau=0.3", 2, "dp-fedavg has no hyper-parameter 'tau'; "),
    ("run --set=Clip=0.3", 2, "did you mean 'clip'?"),
    ("run --data=MNITS", 2, "did you mean 'mnist'?"),
    ("run --log=tensorbord", 2, "no log 'tensorbord'; did you mean 'tensorboard'?"),
    ("run --partition=nowhere:split", 2, "no module 'nowhere'"),
    ("run --partition=splits:missing", 2, "'missing'"),
    ("run --partition=splits:short --clients=4", 2, "gives int64 of shape (3,): it must give one whole number"),
    ("run --partition=splits:beyond --clients=4", 2, "client numbers from 0 to 4: they must lie between 0 and 3"),
    ("run --partition=splits:broken --clients=4", 2, "The partition 'splits:broken' fails: ZeroDivisionError"),
    ("run --partition=splits:fractions --clients=4", 2, "gives float64"),
    ("run --partition=ending:split --clients=4", 2, "The partition 'ending:split' fails: SystemExit: 0"),
    ("run --model=ending:Net", 2, "The model 'ending:Net' cannot be made: SystemExit: 0"),
    ("run --model=ending:Forward", 2, "SystemExit: 0"),
    ("run --method=ending:M", 2, "The method 'ending:M' cannot be made: SystemExit: 0"),
    ("run --method=ending:Hook", 2, "Code of your own ended the program (SystemExit: 0)"),
    ("run --method=local --budget-over-runs=0", 2, "budget_over_runs cannot be 0.0"),
    ("run --method=fedavg --budget-over-runs=5", 2, "take a method that adds noise"),
    ("run --privacy=none --epsilon=3", 2, 'privacy = "none" adds no noise'),
    ("plan --method=local", 2, "Nothing leaves a client with local"),
    ("plan --method=fedavg", 2, "sends something without noise"),
    ("plan --method=dp-fedavg-record", 2, "depends on how many records a client has"),
    ("plan --variant=paper --method=feddpa", 2, "depends on how many records a client has"),
    ("plan --records=10 --data=digits", 2, "leave out either --records or the data"),
    ("plan --parameters=10 --model=mlp", 2, "leave out either --parameters or --model"),
    ("plan --privacy=none", 2, "no noise to plan"),
    ("plan --set=noise=integers", 2, "infinite epsilon, whatever is planned"),
    ("plan --set=colluders=200", 2, "no honest noise is left"),
    ("plan --records=0", 2, "Invalid value for '--records'"),
    ("plan --set=clip=0", 2, "clip cannot be 0"),
    ("plan --data=digits --label=x", 2, "label"),
    ("compare --epsilon=1,x", 2, "epsilon cannot be 'x'"),
    ("compare --epsilon=1,1", 2, "names a value twice"),
    ("compare --epsilon=0,1", 2, "epsilon cannot be 0"),
    ("compare --epsilon=1,2 --sweep=epsilon=3", 2, "'epsilon' is swept twice"),
    ("compare --sweep=epsilon", 2, "write a key and its values"),
    ("compare --sweep=seed=1,2", 2, "'seed' cannot be swept over"),
    ("compare --sweep=clients=0,5", 2, "clients cannot be 0"),
    ("compare --sweep=clinets=5,6", 2, "did you mean 'clients'?"),
    ("compare --jobs=0", 2, "at least one job"),
    ("compare --jobs=2 --budget-over-runs=9", 2, "leave out either it or --jobs"),
    ("compare --tune=rate", 2, "write a key and its values"),
    ("compare --tune=';'", 2, "A grid is empty"),
    ("compare --tune=tua=1,2 --methods=feddpa", 2, "did you mean 'tau'?"),
    ("compare --latex --markdown", 2, "either --latex or --markdown"),
    ("compare --csv=/dev/null/x.csv", 2, "/dev/null/x.csv cannot be written"),
    ("compare --picture=x.docx", 2, "'.docx' is no kind of picture; .png, .pdf and .svg are"),
    ("compare --methods=local,FEDDPAA", 2, "did you mean 'feddpa'?"),
    ("compare '--methods=feddpa[tau=2'", 2, "is not understood"),
    ("compare --log=paper", 2, "no log 'paper'"),
    ("compare --method=local", 2, "No such option"),
    ("methods fedpda", 2, "did you mean 'feddpa'?"),
    ("methods no.such:Method", 2, "no module 'no'"),
    ("models --nothing", 2, "No such option"),
    ("explain epsilom", 2, "did you mean 'epsilon'?"),
    ("explain xyzzyx", 2, "There is no word in the glossary"),
    ("runs --state=dome", 2, "did you mean 'done'?"),
    ("runs --last=0", 2, "Invalid value for '--last'"),
    ("runs --store=splits.py", 2, "is a file, but must be a folder"),
    ("rm", 2, "Missing argument"),
    ("rm x --store=nowhere", 2, "There is no store in nowhere"),
    ("resume x --store=nowhere", 2, "There is no store in nowhere"),
    ("resume", 2, "Missing argument"),
    ("advise --clients=10", 2, "Say how many records"),
    ("advise --records=0", 2, "Invalid value for '--records'"),
    ("data show digits --clients=0", 2, "clients cannot be 0"),
    ("data show digits --partition=shards:x", 2, "needs a number after the colon"),
    ("data shwo digits", 2, "No such command 'shwo'"),
    ("curve show nowhere.json", 2, "nowhere.json"),
    ("run --set=epochs=true", 2, "hyper-parameter epochs cannot be True: it must be a number"),
    ("run --set=rounds=true", 2, "rounds cannot be True: it must be a number"),
    ("run --method=", 2, "No method is named; known are: acdp-pfsd"),
    ("compare '--methods=local,[clip=1]'", 2, "No method is named; known are: acdp-pfsd"),
    ("run --model=", 2, "model cannot be ''"),
    ("run --data=", 2, "data cannot be ''"),
    ("run --data=own --drop=label", 2, "'label' is the label: it can be neither dropped nor a category"),
    ("run --data=own --drop=sex --categorical=sex", 2, "'sex' cannot be both dropped and a category"),
    ("run --data=own --drop=sex --labels=0", 2, "declare at least two, each once"),
    ("run --data=own --schema=own", 2, "The schema own cannot be read: it is a folder, not a file"),
    ("run --data=own --schema=splits.py", 2, "The schema splits.py is not valid TOML"),
    ("run --data=arrays", 2, "junk.npz is damaged: it is not a readable .npz file of plain arrays. Get it again"),
    ("run splits.py", 2, "The experiment file splits.py is not valid TOML"),
    ("run own", 2, "The experiment file own cannot be read: it is a folder, not a file"),
    ("run --log=", 2, "No log is named"),
    ("run --partition=:split", 2, "':split' is not a dotted name"),
    ("run --model=math:sqrt", 2, "cannot be made from shape, classes and the options given"),
    ("run --method=math:sqrt", 2, "'math:sqrt' is not a method"),
    ("compare --seeds=0", 2, "at least one seed"),
    ("compare --methods=", 2, "Name at least one method"),
    ("compare --epsilon=,", 2, "is not understood"),
    ("compare '--methods=dp-fedavg[clip=0]'", 2, "clip cannot be 0"),
    ("advise --clients=10 --records=5 --delta=0.5", 2, "delta = 0.5 is vacuous for 10 clients"),
    ("ledger x --csv --json", 2, "either --csv or --json, not both"),
    ("ledger x --csv --verify", 2, "either --csv or --verify, not both"),
    ("show x --store=nowhere", 2, "There is no store in nowhere"),
    ("statement x -o x.pdf", 2, "A PDF is made by a browser: write x.html"),
    ("statement x -o x.doc", 2, "written as .md or .html, or as .json for programs, not as '.doc'"),
    ("statement x -o x.yaml", 2, "written as .md or .html, or as .json for programs, not as '.yaml'"),
    ("statement x --registry -o x.html", 2, "The registry's fields are written as .yaml or .json, not as '.html'"),
    ("statement nowhere/", 2, "There is no site in nowhere/: it has no file site.toml. `sordino site init` makes"),
    ("statement own/", 2, "There is no site in own/"),
    ("ledger own/ --verify", 2, "There is no site in own/"),
    ("predict own/ new.csv", 2, "There is no site in own/"),
    ("export x --client=y --format=onx", 2, "no format 'onx'; did you mean 'onnx'?"),
    ("predict x new.csv --client=y --store=nowhere", 2, "There is no store in nowhere"),
    ("report none.json", 2, "There is no file none.json"),
    ("audit --tiers=9", 2, "tier"),
    ("reproduce nothing", 2, "nothing"),
    ("data schema nowhere --label=x", 2, "There is no folder nowhere"),
    ("data schema own --label=nothing", 2, "There is no column 'nothing'"),
    ("plan --method=dp-fedavg-record --records=10 --clients=1000000000", 2, "1,000,000,000 are too many to list"),
    ("compare '--methods=dp-fedavg[clip=1,clip=2]'", 2, "clip is given twice, as 1 and as 2"),
    ("compare '--tune=clip=1;rate=0.1;clip=2'", 2, "The grid 'clip=1;rate=0.1;clip=2' names a key twice"),
    ("compare --methods=dp-fedavg[method=local]", 2, "'method' cannot stand in a method's brackets"),
    ("compare --methods=dp-fedavg[seed=3]", 2, "'seed' cannot stand in a method's brackets"),
    ("compare --methods=dp-fedavg[data-dir=here]", 2, "'data_dir' cannot stand in a method's brackets"),
    ("data schema own --positive=7", 2, "There is no label '7'"),
    ("data schema own -o /dev/null/x.toml", 2, "/dev/null/x.toml cannot be written"),
    ("data schema bare", 2, "nothing beside the label 'label' to learn from (x: no record has a value: dropped.)"),
    ("data schema alone", 2, "nothing beside the label 'label' to learn from: add a column"),
    ("data schema long", 2, "a.csv is damaged: it is not a CSV text (field larger than field limit"),
    ("data schema pipes", 2, "pipe.csv is a pipe or a device, not a file"),
    ("data normalise own --schema=none.toml", 2, "There is no schema none.toml"),
    ("deploy none.toml --local=3", 2, "There is no experiment file none.toml"),
    ("site status nowhere", 2, "nowhere"),
    ("site status .", 2, ". is no site, but has sites in it: name one, as in 'site-0'."),
    ("run schemas/s.toml", 2, "`columns` is a table, as in a schema: name that file with --schema"),
    ("run --data=pipez", 2, "There is no data set or folder 'pipez'; did you mean the folder 'pipes'?"),
    ("run --model=linear", 2, "There is no model 'linear'; known are: "),
    ("serve add none.pub", 2, "server has no server.key: `sordino serve init"),
    ("join nowhere --server=localhost:1 --ca=x.pem", 2, "There is no certificate x.pem"),
]
"""Command, exit code, part of the sentence."""


def test_a_plan_for_a_billion_clients_needs_no_list_of_them() -> None:
    tracemalloc.start()
    try:
        outcome = command("plan", "--method=dp-fedavg", "--clients=1000000000", "--records=10", "--json")
        assert outcome.document["epsilon"]["outsider"] == pytest.approx(8)
        assert tracemalloc.get_traced_memory()[1] < 500_000_000
    finally:
        tracemalloc.stop()


def test_there_are_a_hundred() -> None:
    assert len({line for line, _, _ in WRONG}) == len(WRONG) >= 100


@pytest.mark.parametrize(("line", "code", "sentence"), WRONG)
def test_a_wrong_input_is_told_in_one_sentence(
    line: str, code: int, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (MODULES | {"splits": SPLITS, "ending": ENDING}).items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    for (folder, name), text in FILES.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    (tmp_path / "pipes").mkdir()
    os.mkfifo(tmp_path / "pipes" / "pipe.csv")
    outcome = command(*shlex.split(line))
    assert outcome.code == code, outcome
    assert outcome.out == ""
    (told,) = outcome.err.splitlines()
    assert told.startswith("Error: ")
    assert sentence in told
    assert told.lower().count("did you mean") <= 1
    assert len(told) < 700
    assert not list(tmp_path.glob(".sordino/runs/*"))
