"""Make a figure and a LaTeX table for a paper from an exported comparison.

    sordino compare --methods local,dp-fedavg,feddpa --seeds 5 --export study
    python examples/paper.py study

writes study/figure.pdf (accuracy of each method over what a client sends) and study/table.tex (for the package
booktabs). It reads the export alone, with matplotlib and without Sordino: change it to taste.
"""

import csv
import statistics
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt


def read(path):
    """Lines of a table, as dictionaries of texts."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def by_method(lines):
    """Lines of each method, in the order of the table."""
    found = {}
    for line in lines:
        found.setdefault(line["method"], []).append(line)
    return found


def draw(rounds, clients, path):
    """Draw the mean personal accuracy over seeds against the megabytes that a client has sent."""
    figure, axis = plt.subplots(figsize=(5, 3.4), layout="constrained")
    for method, lines in by_method(rounds).items():
        runs = {}
        for line in lines:
            if line["personal"]:
                runs.setdefault(line["run"], []).append((float(line["upload_bytes"]), float(line["personal"])))
        length = min(map(len, runs.values()))
        accuracy = [statistics.mean(run[at][1] for run in runs.values()) for at in range(length)]
        sent = [
            sum(run[at][0] for at in range(place + 1)) for run in list(runs.values())[:1] for place in range(length)
        ]
        axis.plot([one / clients / 1e6 for one in sent], accuracy, marker=".", label=method)
    axis.set_xlabel("sent by a client (MB)")
    axis.set_ylabel("personal accuracy")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    figure.savefig(path)
    plt.close(figure)


def escaped(text):
    """Text in which LaTeX reads no commands."""
    return "".join(f"\\{letter}" if letter in "_%&#$" else letter for letter in text)


def number(line, name, factor=1.0, digits=1):
    """Mean and spread of a figure over seeds; a dash where there is none."""
    if not line[f"{name}_mean"]:
        return "--"
    mean, spread = (factor * float(line[f"{name}_{part}"]) for part in ("mean", "spread"))
    return f"{mean:.{digits}f} $\\pm$ {spread:.{digits}f}"


def table(methods, runs):
    """LaTeX table: accuracy, fairness and cost of each method."""
    head = "method & accuracy & worst tenth & Gini & MB up & MB down & seconds & $\\varepsilon$"
    lines = [r"\begin{tabular}{lrrrrrrr}", r"\toprule", head + r" \\", r"\midrule"]
    for line in methods:
        epsilon = float(line["epsilon_outsider"])
        sent = [f"{float(line[name] or 'nan') / 1e6:.2f}" for name in ("upload_bytes", "download_bytes")]
        cells = [escaped(line["method"]), number(line, "personal", 100), number(line, "worst_tenth", 100)]
        cells += [number(line, "gini", 1, 3), *sent, f"{float(line['seconds']):.1f}"]
        cells.append(r"$\infty$" if epsilon == float("inf") else f"{epsilon:.2f}")
        lines.append(" & ".join(cells) + r" \\")
    seeds = len({line["seed"] for line in runs})
    return "\n".join(
        [*lines, r"\bottomrule", r"\end{tabular}", f"% mean and standard deviation over {seeds} seeds", ""]
    )


def main():
    """Read the export named on the command line, and write figure and table into it."""
    folder = Path(sys.argv[1])
    runs = read(folder / "runs.csv")
    draw(read(folder / "rounds.csv"), int(runs[0]["clients"]), folder / "figure.pdf")
    (folder / "table.tex").write_text(table(read(folder / "methods.csv"), runs), encoding="utf-8")
    print(f"{folder / 'figure.pdf'} and {folder / 'table.tex'}")


if __name__ == "__main__":
    main()
