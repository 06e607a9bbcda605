"""Time of scattering features: seconds of one core for 10,000 images of 28x28, and of reading them from the cache.

OMP_NUM_THREADS=1 python benchmarks/extraction.py
"""

from __future__ import annotations

import os
import tempfile
import time

import torch

from sordino.features.choice import read_choice
from sordino.features.extractor import build

RECORDS = 10_000


def main() -> None:
    """Print processor seconds of a first and a second extraction."""
    torch.set_num_threads(1)
    os.environ["SORDINO_CACHE"] = tempfile.mkdtemp()
    choice = read_choice("scattering")
    assert choice is not None
    extractor = build(choice, (1, 28, 28), record_level=False)
    images = torch.rand(RECORDS, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    for what in ("computed", "read again"):
        begin = time.process_time()
        extractor.apply(images)
        print(f"{what}: {time.process_time() - begin:.2f} s")


if __name__ == "__main__":
    main()
