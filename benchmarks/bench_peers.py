"""Speed as ratios of one run: Sordino and its peers, privacy included, against bare PyTorch loops without it.

    make bench-peers                                    # everything
    python benchmarks/bench_peers.py --only W3 W4       # some workloads

W1, W2 and W3 (workloads.py) are done in turns by loop B, Sordino, Flower and pfl, each peer in an environment of its
own under .bench/. W4 is the record-level step (record_level.py), with Opacus. PFLlib is left out: pip cannot install
it. A peer that cannot take part is named with the reason, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from bare import Bare
from bench import B, w4
from contenders import Contender, Sordino
from measuring import machine, measured, medians
from peers.contender import PEERS, Peer
from peers.environments import PROJECT, PeerError
from workloads import WORKLOADS, Workload

W4 = "W4"
PFLLIB = "left out: it is not a package that pip can install"
BUSY = 0.5
"""The load from which ratios are not to be trusted: one process then gets more of a core than each of two."""


def peers(workload: Workload, notes: dict[str, Any]) -> dict[str, Contender]:
    """The peers that can do a workload, after a round that is not measured; versions and reasons go to the notes."""
    found: dict[str, Contender] = {}
    for name, kind in PEERS.items():
        try:
            kind.environment.make()
            notes[name] = kind.environment.versions()
            peer = Peer(name, workload)
            peer.rate(1)
            found[name] = peer
        except PeerError as failure:
            notes[f"{name}, {workload.name}"] = str(failure)
            print(f"  {failure}", flush=True)
    return found


def federated(workload: Workload, turns: int, notes: dict[str, Any]) -> dict[str, Any]:
    """Loop B, Sordino and the peers on one workload."""
    contenders: dict[str, Contender] = {B: Bare(workload, 2, 1), "sordino": Sordino(workload)}
    rates = measured(workload.name, workload.rounds, contenders | peers(workload, notes), turns)
    return {"about": workload.about, "turns": rates, "median": medians(rates)}


def table(result: dict[str, Any]) -> str:
    """Ratios to loop B; in W4, to the step without privacy."""
    columns = {
        name: {who: value / found["median"][B] for who, value in found["median"].items()}
        for name, found in result["workloads"].items()
    }
    if rates := result.get(W4, {}).get("samples_per_second"):
        columns[W4] = {who: value / rates["without privacy"] for who, value in rates.items()}
    names = dict.fromkeys(who for column in columns.values() for who in column)
    wide = max(map(len, names), default=0)
    lines = [" " * wide + "".join(f"{name:>8}" for name in columns)]
    for who in names:
        cells = (f"{column[who]:8.2f}" if who in column else f"{'':8}" for column in columns.values())
        lines.append(f"{who:{wide}}" + "".join(cells))
    return "\n".join(lines)


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least one turn is needed")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    everything = [*sorted(WORKLOADS), W4]
    parser.add_argument("--only", nargs="+", choices=everything, default=everything)
    parser.add_argument("--turns", type=positive, default=3, help="how often each contender is measured")
    parser.add_argument("--json", type=Path, default=PROJECT / ".bench" / "bench-peers.json")
    chosen = parser.parse_args()
    notes: dict[str, Any] = {"PFLlib": PFLLIB}
    result: dict[str, Any] = {"machine": machine(), "peers": notes, "workloads": {}}
    if result["machine"]["load"] > BUSY:
        notes["warning"] = (
            f"the load was {result['machine']['load']:.2f} at the start: the ratios are not to be trusted"
        )
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    for name in chosen.only:
        if name == W4:
            result[W4] = w4(chosen.turns).figures
        else:
            try:
                result["workloads"][name] = federated(WORKLOADS[name], chosen.turns, notes)
            except PeerError as failure:
                raise SystemExit(f"{name} was not finished: {failure}") from None
        result["load_at_end"] = os.getloadavg()[0]
        chosen.json.write_text(json.dumps(result, indent=1))
    print(f"\nSamples per second as a ratio to {B}, in W4 to the step without privacy:\n{table(result)}\n")
    for who, what in (result["machine"] | notes | {"load at the end": result["load_at_end"]}).items():
        print(f"{who}: {what if isinstance(what, str | int | float) else ' '.join(map(' '.join, what.items()))}")
    print(f"Written to {chosen.json}")


if __name__ == "__main__":
    main()
