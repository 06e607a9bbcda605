"""Speed as ratios of one run: Sordino, privacy included, against bare PyTorch loops without it.

    make bench                                    # everything, about a quarter of an hour on two cores
    python benchmarks/bench.py --only W1 W3       # some of it

Contenders take turns and medians over the turns are compared; measure on an idle machine all the same. Loop B (two
single-threaded processes) is the denominator. At the end stands what was aimed at, and whether it was reached.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gradient_sums
import record_level
import record_rounds
import startup
from bare import Bare
from contenders import Contender, Sordino, privacy_share
from measuring import machine, measured, medians
from peers.environments import OPACUS, PeerError
from scale import point
from workloads import W1, W2, W3, Workload

from sordino.simulator import bf16

A, B = "loop A (1 process, 2 threads)", "loop B (2 processes)"


@dataclass(frozen=True)
class Target:
    """Something aimed at, and what was measured."""

    what: str
    wanted: float
    found: float | None
    """None where it cannot be measured here."""
    at_least: bool = True
    why: str = ""
    """What keeps it from being measured, or met."""

    def met(self) -> bool | None:
        if self.found is None:
            return None
        return self.found >= self.wanted if self.at_least else self.found <= self.wanted

    def line(self) -> str:
        verdict = {True: "met", False: "NOT MET", None: "not measured"}[self.met()]
        found = "" if self.found is None else f"{self.found:8.2f}"
        sign = "at least" if self.at_least else "at most"
        return f"  {self.what:62} {sign:8} {self.wanted:6.2f}   {found:>8}   {verdict}{self.why and f' ({self.why})'}"


@dataclass(frozen=True)
class Section:
    """What one part of the benchmark found."""

    figures: dict[str, Any]
    targets: list[Target]


def against_loops(workload: Workload, turns: int, **more: Contender) -> tuple[dict[str, Any], dict[str, float]]:
    """Samples a second of the bare loops, of Sordino and of `more` on a workload, printed as ratios to loop B."""
    contenders: dict[str, Contender] = {A: Bare(workload, 1, 2), B: Bare(workload, 2, 1), "sordino": Sordino(workload)}
    rates = measured(workload.name, workload.rounds, contenders | more, turns)
    middle = medians(rates)
    print(f"{workload.name}: {workload.about}")
    for who, value in middle.items():
        print(f"  {who:32} {value:12,.0f} samples/s   {value / middle[B]:.2f} x B")
    return {"about": workload.about, "turns": rates, "median": middle}, middle


def w1(turns: int) -> Section:
    figures, middle = against_loops(W1, turns)
    share = privacy_share(W1)
    return Section(
        figures | {"privacy_share": share},
        [
            Target("W1 against loop B", 1.15, middle["sordino"] / middle[B]),
            Target("W1: share of clipping and noise in a round", 0.1, share, at_least=False),
        ],
    )


def w2(turns: int) -> Section:
    bf16.secure()
    faster = bf16.decide("bf16", "cpu", W2.module(), W2.shape, W2.batch, resumed=False).precision == "bf16"
    more: dict[str, Contender] = {"sordino, bf16": Sordino(W2, precision="bf16")} if faster else {}
    figures, middle = against_loops(W2, turns, **more)
    share = privacy_share(W2)
    coarse = middle["sordino, bf16"] / middle[B] if more else None
    why = "" if more else "bf16 is not faster than fp32 on this processor"
    return Section(
        figures | {"privacy_share": share},
        [
            Target("W2 against loop B, fp32", 1.5, middle["sordino"] / middle[B]),
            Target("W2 against loop B, bf16", 1.3, coarse, why=why),
            Target("W2: share of clipping and noise in a round", 0.1, share, at_least=False),
        ],
    )


def w3(turns: int) -> Section:
    figures, middle = against_loops(W3, turns)
    return Section(figures, [Target("W3 against loop B", 10.0, middle["sordino"] / middle[B])])


def w4(turns: int) -> Section:
    """Steps at record level, with one thread: see record_level.py. Opacus needs an environment of its own."""
    try:
        OPACUS.make()
        figures = json.loads(
            OPACUS.output("benchmarks/record_level.py", "--json", "--turns", str(turns)).splitlines()[-1]
        )
        figures |= {"versions": OPACUS.versions()}
        missing = ""
    except PeerError as failure:
        figures, missing = record_level.measured(turns), str(failure)
    print("W4: record-level steps, one client, LeNet, batches of 64 on average, one thread")
    record_level.show(figures)
    ratios, memory = figures["ratios"], figures["memory"]
    return Section(
        figures,
        [
            Target("W4 eager against the step without privacy", 0.6, ratios["eager"]),
            Target("W4 eager against Opacus's best mode", 1.3, ratios["eager_opacus"], why=missing),
            Target("W4 compiled against the compiled step without privacy", 0.93, ratios["compiled"]),
            Target("W4 compiled against Opacus's best mode", 2.5, ratios["compiled_opacus"], why=missing),
            Target("W4 peak memory, against without privacy", 1.5, memory["ratio"], at_least=False),
        ],
    )


def w5(turns: int) -> Section:
    """Rounds that protect records at many small clients, and the accounting around them: see record_rounds.py."""
    figures = record_rounds.measured(turns)
    print("W5: rounds at record level, 100 small clients, one process, in the processor's time")
    record_rounds.show(figures)
    few, many = (figures["accounting"][clients] for clients in ("100", "10000"))
    times = None if figures["opacus"] is None else figures["opacus"] / figures["uneven"]["record"]
    return Section(
        figures,
        [
            Target("W5: a round on digits, in client-level rounds", 4.0, figures["digits"]["times"], at_least=False),
            Target("W5 against the loop with Opacus", 1.0, times, why=figures["missing"]),
            Target("W5: seconds for 100 clients' noise", 1.0, few["before"], at_least=False),
            Target("W5: seconds for 10^4 clients' noise", 3.0, many["before"], at_least=False),
            Target("W5: seconds for 100 clients' epsilons at the end", 1.0, few["after"], at_least=False),
        ],
    )


def w6(turns: int) -> Section:
    """Rounds of sums of records' gradients against the same gradient without privacy: see gradient_sums.py."""
    figures = gradient_sums.measured(turns)
    print(f"W6: {figures['about']}")
    gradient_sums.show(figures)
    sites, pooled = (figures["times"][name] for name in ("sites", "pooled"))
    return Section(
        figures,
        [
            Target("W6: a round of gradient sums, in bare gradients", 3.0, sites["processor"], at_least=False),
            Target("W6: the same by the clock", 3.0, sites["wall"], at_least=False),
            Target("W6: the same, in gradients of pooled rows", 3.0, pooled["processor"], at_least=False),
        ],
    )


def feddpa(turns: int) -> Section:
    """A whole round of FedDPA (Fisher information, both phases) against one of DP-FedAvg, on W2's shapes."""
    contenders: dict[str, Contender] = {"dp-fedavg": Sordino(W2), "feddpa": Sordino(replace(W2, method="feddpa"))}
    rates = measured("FedDPA", W2.rounds, contenders, turns)
    middle = medians(rates)
    times = middle["dp-fedavg"] / middle["feddpa"]
    print(f"FedDPA: a round takes {times:.2f} times that of DP-FedAvg with as many epochs (W2's shapes)")
    return Section(
        {"turns": rates, "median": middle},
        [Target("FedDPA's round, in rounds of DP-FedAvg", 3.0, times, at_least=False)],
    )


def clients(turns: int) -> Section:
    """A hundred times the clients, with as many a round."""
    few, many = 1_000, 100_000
    sizes = {f"{size:,} clients": Sordino(replace(W3, clients=size)) for size in (few, many)}
    rates = measured("clients", 100, dict[str, Contender](sizes), turns)
    middle = list(medians(rates).values())
    memory = point("clients", many)["peak_mib"] / 1024
    print(f"clients: with {many:,} a round takes {middle[0] / middle[1]:.2f} times that with {few:,}; {memory:.2f} GiB")
    return Section(
        {"turns": rates, "peak_gib": memory},
        [
            Target("10^5 clients: time a round, against 10^3", 1.2, middle[0] / middle[1], at_least=False),
            Target("10^5 clients: peak memory in GiB", 0.8, memory, at_least=False),
        ],
    )


def start(turns: int) -> Section:
    """Seconds from the shell to the help page and to the end of a first round."""
    figures = startup.measured(turns)
    print(f"start: help after {figures['help']:.2f} s, a first round done after {figures['first_round']:.2f} s")
    return Section(
        figures,
        [
            Target("seconds to `sordino --help`", 0.3, figures["help"], at_least=False),
            Target("seconds to the end of the built-in example's first round", 5.0, figures["first_round"], False),
        ],
    )


SECTIONS: dict[str, Callable[[int], Section]] = {
    "W1": w1,
    "W2": w2,
    "W3": w3,
    "W4": w4,
    "W5": w5,
    "W6": w6,
    "feddpa": feddpa,
    "clients": clients,
    "start": start,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path(".bench/bench.json"))
    chosen = parser.parse_args()
    result: dict[str, Any] = {"machine": machine(), "sections": {}, "targets": []}
    targets: list[Target] = []
    for name in chosen.only:
        section = SECTIONS[name](chosen.turns)
        result["sections"][name] = section.figures
        targets += section.targets
    result["targets"] = [asdict(target) | {"met": target.met()} for target in targets]
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(result, indent=1))
    print("Aimed at, and measured:")
    for target in targets:
        print(target.line())
    about = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
    print(f"Machine: {about}. Written to {chosen.json}.")


if __name__ == "__main__":
    main()
