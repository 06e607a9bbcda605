"""Faults on purpose: kills, cuts, flips, fuzzed input, deaths of workers, full disks, processors of other ages.

    PYTHONPATH=tests python -m faults --seed 1

Each part makes trials from a seed and a number, and each trial checks promises of the command line. A promise that
was broken is told with the command that repeats the trial. The parts see Sordino as its users do: through the command
line and `sordino.api`; what lies in a store is found by listing it.
"""
