"""Break the privacy code on purpose, one line at a time, and see that the tests notice.

    python tests/mutants.py

Each mutant is a text replacement in a copy of the package. A mutant that no test kills is a hole in the suite:
the script then ends with exit code 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAGES = (("tests/privacy",), ("tests/methods", "tests/test_contract.py"))
"""The quick tests first: most mutants do not survive them."""

MUTANTS = [
    ("half the noise", "privacy/gate.py", "rows.shape[1], public).float())", "rows.shape[1], public).float() / 2)"),
    ("half the noise, charged alike", "privacy/gate.py", "self.multiplier / math", "0.5 * self.multiplier / math"),
    (
        "noise shared out once more",
        "privacy/gate.py",
        "self.minimum_cohort - self.colluders)",
        "self.minimum_cohort**2)",
    ),
    ("no clipping", "privacy/release.py", "threshold / norms * (1 - 2**-22)", "torch.ones_like(norms)"),
    ("no clipping of short rows' neighbours", "privacy/release.py", "> threshold).any():", "> threshold).all():"),
    ("clipping to twice the threshold", "privacy/release.py", "threshold / norms *", "2 * threshold / norms *"),
    ("clipping that rounds above", "privacy/release.py", "(1 - 2**-22)", "(1 + 2**-20)"),
    (
        "NaN passes",
        "privacy/release.py",
        "finite = torch.isfinite(norms).all(dim=1)",
        "finite = torch.ones(len(norms), dtype=torch.bool)",
    ),
    ("numbers are not held", "privacy/release.py", ".clamp(self.low, self.high)", ".clamp(-1e9, 1e9)"),
    ("one draw for all clients", "privacy/noise.py", "*purpose), clients)", "*purpose), [0] * len(clients))"),
    ("one draw for all rounds", "privacy/gate.py", "(step, name, round), clients", "(step, name, 0), clients"),
    ("one draw for all releases", "privacy/gate.py", "(step, name, round), clients", '(step, "", round), clients'),
    ("one draw for all seeds", "privacy/noise.py", "(self.seed, *purpose)", "purpose"),
    ("layers' noise is halved", "privacy/release.py", "by_layer.repeat_interleave", "(by_layer / 2).repeat_interleave"),
    ("nothing is charged", "privacy/ledger.py", "+= row.cost(view)", "+= 0.0"),
    (
        "only the first release is charged",
        "privacy/ledger.py",
        "in releases.items():",
        "in list(releases.items())[:1]:",
    ),
    ("the server is taken for an outsider", "privacy/ledger.py", 'if view == "server":', 'if view == "nobody":'),
    ("a peer's own noise is forgotten", "privacy/ledger.py", '1 if view == "peer" else 0', "0"),
    ("published masks are free", "privacy/ledger.py", '"server" if self.exposed else view', "view"),
    ("a bare release is free", "privacy/ledger.py", "return math.inf", "return 0.0"),
    ("the mean client instead of the worst", "privacy/ledger.py", "[view].max(initial=0.0)", "[view].mean()"),
    ("undeclared values leave", "privacy/gate.py", "if undeclared:", "if False:"),
    ("epsilon too small by a tenth", "privacy/accountant.py", "return float(root)", "return 0.9 * float(root)"),
    ("shares are ignored", "privacy/gate.py", "math.sqrt(release.share)", "1.0"),
    ("records: half the noise", "privacy/gradients.py", "self.multiplier * whole)", "0.5 * self.multiplier * whole)"),
    ("records: no clipping", "privacy/clipping.py", ".clamp(max=1)", ".clamp(min=1, max=1)"),
    ("records: clipping too little by 1e-4", "privacy/clipping.py", "(1 - 2**-23)", "(1 + 1e-4)"),
    (
        "records: the largest threshold for all layers",
        "privacy/clipping.py",
        "clip.double() *",
        "clip.double().max() *",
    ),
    ("records: rounding of the sum is left out", "per_example.py", ", self.inputs) * apart", ", self.inputs) * 0"),
    ("records: rounding is taken for a tenth", "per_example.py", ".eps / 2)", ".eps / 20)"),
    ("records: output gradients in float32", "per_example.py", "1, 2), slopes)", "1, 2).float(), slopes.float())"),
    ("records: activations in float32", "per_example.py", "(part.double() for part in", "(part for part in"),
    ("records: norms in float32", "per_example.py", "dim=1, dtype=torch.float64)", "dim=1).double()"),
    ("records: the bias is left out", "per_example.py", "products + 1 if", "products if"),
    ("records: one draw for all steps", "privacy/gradients.py", "(*self.__purpose, self.taken)", "self.__purpose"),
    ("records: batches are not sampled", "privacy/gradients.py", "(coins < self.rate)", "(coins < 2)"),
    ("records: NaN spoils the sum", "privacy/gradients.py", "chosen[known]", "chosen"),
    ("records: steps are not counted", "privacy/gradients.py", "if self.taken >= self.steps:", "if False:"),
    ("records: one step is charged", "privacy/records.py", "int(self.steps[client])", "1"),
    ("records: a matrix without noise", "privacy/gate.py", "symmetric(draws[0]).unsqueeze(0) *", "0 *"),
    ("a smaller cohort is used", "simulator/federation.py", "summed and len(who) < noise.minimum_cohort", "False"),
    ("the ledger is not asked", "simulator/federation.py", "self.ledger.charge(", "(lambda *_: None)("),
]


def killed(name: str, file: str, before: str, after: str) -> bool:
    """Whether the tests fail on a copy of the project with one replacement."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        shutil.copytree(
            ROOT, copy, ignore=shutil.ignore_patterns(".venv", ".git", ".sordino", "*.egg-info", ".*_cache")
        )
        target = copy / "sordino" / file
        text = target.read_text()
        if before not in text:
            sys.exit(f"{name}: {file} no longer holds {before!r}; bring the mutant up to date.")
        target.write_text(text.replace(before, after, 1))
        environment = os.environ | {"PYTHONPATH": str(copy)}
        for tests in STAGES:
            command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "2", *tests]
            if subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False).returncode == 1:
                return True
    return False


def main() -> None:
    """Try each mutant and tell which survived."""
    survivors = []
    for mutant in MUTANTS:
        caught = killed(*mutant)
        print(f"{'caught  ' if caught else 'SURVIVED'}  {mutant[0]}", flush=True)
        if not caught:
            survivors.append(mutant[0])
    print(f"{len(MUTANTS) - len(survivors)} of {len(MUTANTS)} mutants caught")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
