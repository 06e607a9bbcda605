"""Extractors: frozen, one record at a time, known by their digest; the user's own with weights, and public data."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sordino.data import Dataset, load
from sordino.errors import UserError
from sordino.features import extractor
from sordino.features.choice import read_choice
from sordino.features.extractor import AT_ONCE, Extractor, build, check_apart, rebuild
from sordino.features.projection import SHIPPED_DATA, shipped, write_projection
from sordino.util.display import extraction_watch

SHAPE = (1, 8, 8)
BACKBONE = """
import torch
from torch import nn

class Mixing(nn.Module):
    def forward(self, x):
        return x.flatten(1) - x.flatten(1).mean(dim=0)

class Drawing(nn.Module):
    def forward(self, x):
        return x.flatten(1) + torch.rand(1)

class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(()))
    def forward(self, x):
        self.last += 1
        return x.flatten(1)

class Branching(nn.Module):
    def forward(self, x):
        return (x / 255 if x.max() > 1 else x).flatten(1)

class Largest(nn.Module):
    def forward(self, x):
        return (x * torch.where(x.amax() > 1, 1 / 255, 1.0)).flatten(1)

class First(nn.Module):
    mean = None
    def forward(self, x):
        if self.mean is None:
            self.mean = x.mean(dim=0)
        return (x - self.mean).flatten(1)

class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.most = [2.0**10]
    def forward(self, x):
        self.most[0] = max(self.most[0], float(x.detach().max()))
        return x.flatten(1) / self.most[0]

class LateInClass(nn.Module):
    most = 2.0**10
    def forward(self, x):
        kind = type(self)
        kind.most = max(kind.most, float(x.detach().max()))
        return x.flatten(1) / kind.most

MOST = [2.0**10]

class LateInFile(nn.Module):
    def forward(self, x):
        MOST[0] = max(MOST[0], float(x.detach().max()))
        return x.flatten(1) / MOST[0]

class Shifted(nn.Module):
    by = 1.0
    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.full((1,), self.by), persistent=False)
        self.size = torch.full((1,), self.by)
    def forward(self, x):
        return (x.flatten(1) - self.shift) / self.size

class Inverse(nn.Module):
    def forward(self, x):
        return 1 / x.flatten(1)

def factory(shape, width=6):
    return nn.Sequential(nn.Conv2d(shape[0], 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(), nn.Flatten(),
                         nn.Linear(3 * (shape[1] - 2) * (shape[2] - 2), width))

def tokens(shape):
    return nn.Sequential(nn.Embedding(50, 4), nn.Flatten())

def text(shape):
    return "no module"
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a user's backbone, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "backbone.py").write_text(BACKBONE)
    yield tmp_path
    sys.modules.pop("backbone", None)


def made(spec: Any, shape: tuple[int, ...] = SHAPE, **more: Any) -> Extractor:
    choice = read_choice(spec)
    assert choice is not None
    return build(choice, shape, record_level=False, **more)


def records(count: int, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(count))


def write_weights(path: Path, scale: float = 1.0) -> None:
    from backbone import factory  # type: ignore[import-not-found]

    torch.manual_seed(5)
    save_file({name: scale * value for name, value in factory(SHAPE).state_dict().items()}, path)


def test_features_have_length_one_and_the_asked_width() -> None:
    found = made("scattering:scales=1,width=7").apply(records(AT_ONCE + 3))
    assert found.shape == (AT_ONCE + 3, 7)
    assert torch.allclose(found.norm(dim=1), torch.ones(AT_ONCE + 3), atol=1e-5)


def test_a_records_features_do_not_depend_on_the_others() -> None:
    extractor, x = made("scattering:scales=1,width=7"), records(AT_ONCE + 5)
    whole = extractor.apply(x)
    for places in ([0], [3, AT_ONCE + 4], list(range(10, 20))):
        assert torch.allclose(extractor.apply(x[places]), whole[places], atol=1e-6)


def test_the_projection_of_the_package_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    found = made("scattering", (1, 28, 28))
    assert (found.output, found.choice.projection, found.notes) == ((128,), "public", ())
    assert SHIPPED_DATA in found.origin
    assert shipped().components.shape == (729, 256)
    assert build(read_choice("scattering"), (1, 28, 28), record_level=True).output == (256,)  # type: ignore[arg-type]
    monkeypatch.setattr("sordino.features.projection.SHIPPED_DIGEST", "0" * 64)
    with pytest.raises(UserError, match="is damaged"):
        made("scattering", (1, 28, 28))


def test_other_settings_seeds_and_projections_have_other_digests() -> None:
    specs = ("scales=1,width=7", "scales=1,width=7,seed=1", "scales=1,width=8", "scales=1,projection=none", "width=7")
    assert len({made(f"scattering:{spec}").digest for spec in specs}) == len(specs)
    assert made("scattering:width=7").digest == made("scattering:width=7").digest
    assert "name them with features.public" in made("scattering:width=7").notes[0]


def test_components_of_public_data_are_uncorrelated_and_of_equal_variance() -> None:
    """Principal components divided by their deviations; before the last step, which gives all records length 1."""
    extractor = made({"public": "digits", "scales": 1, "width": 5})
    assert isinstance(extractor.module, nn.Sequential)
    before, last = extractor.module[:2], extractor.module[2]
    x = load("digits").x
    projected = ((before(x) - last.mean) @ last.components).double()  # type: ignore[operator, union-attr]
    covariance = torch.cov(projected.T)
    assert torch.allclose(covariance, torch.eye(5, dtype=torch.float64), atol=0.02)


def test_public_data_that_are_the_clients_own_are_refused() -> None:
    extractor, digits = made({"public": "digits", "scales": 1, "width": 5}), load("digits")
    with pytest.raises(UserError, match="are the clients' own"):
        check_apart(extractor, digits)
    others = Dataset("others", torch.rand_like(digits.x), digits.y, digits.task, None, (), None)
    assert check_apart(extractor, others) is others
    others.x[0] = digits.x[0]
    assert "1 of the public records" in check_apart(extractor, others).disclosed[0]


def test_a_projection_in_a_file_is_known_by_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "projection.safetensors"
    digest = write_projection("digits", path, scales=1, angles=8, pool=3, data_dir=None)
    found = made({"weights": path, "scales": 1, "width": 5})
    assert (found.choice.digest, "digits" in found.origin) == (digest, True)
    assert torch.allclose(
        found.apply(load("digits").x[:5]),
        made({"public": "digits", "scales": 1, "width": 5}).apply(load("digits").x[:5]),
        atol=1e-5,
    )
    with pytest.raises(UserError, match="scattering coefficients, and these images"):
        made({"weights": path, "scales": 1, "angles": 4})
    with pytest.raises(UserError, match="is wanted"):
        made({"weights": path, "scales": 1, "digest": "0" * 64})
    with pytest.raises(UserError, match="feature_files"):
        made({"digest": digest, "scales": 1}, files=lambda digest: None)
    assert made({"digest": digest, "scales": 1, "width": 5}, files=lambda one: path.read_bytes()).digest == found.digest


def test_a_users_backbone_is_frozen_in_evaluation_mode(own: Path) -> None:
    spec = {"extractor": "backbone.py:factory", "weights": own / "w.safetensors", "trained_on": "noise", "width": 6}
    with pytest.raises(UserError, match="cannot be read"):
        made(spec)
    made("backbone:factory:trained_on=nothing")  # imports it
    write_weights(own / "w.safetensors")
    found = made(spec)
    assert found.output == (6,)
    assert "trained on noise" in found.origin
    assert not any(part.training for part in found.module.modules())
    assert not any(parameter.requires_grad for parameter in found.module.parameters())
    before = found.digest
    write_weights(own / "w.safetensors", scale=2.0)
    assert made(spec).digest != before
    again = rebuild(found.document(), SHAPE, found.tensors())
    assert torch.allclose(again.apply(records(3)), found.apply(records(3)))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Mixing", "one record at a time"),
        ("Drawing", "not the same each time"),
        ("Remembering", "must be frozen"),
        ("First", "depend on those that are seen first"),
        ("text", "gives a str"),
        ("nothing", "nothing"),
    ],
)
def test_what_is_no_function_of_one_record_is_refused(own: Path, name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        made({"extractor": f"backbone:{name}", "trained_on": "nothing"})


@pytest.mark.parametrize("name", ["Branching", "Largest", "factory"])
def test_one_record_moves_no_others_features_whatever_code_does_with_a_batch(own: Path, name: str) -> None:
    found, x = made({"extractor": f"backbone:{name}", "trained_on": "nothing"}), records(AT_ONCE + 5)
    other = x.clone()
    other[3] *= 1000
    before, after = (torch.from_numpy(np.concatenate(list(found.compute(one)))) for one in (x, other))
    assert torch.equal(before[:3], after[:3])
    assert torch.equal(before[4:], after[4:])
    assert not torch.equal(before[3], after[3])
    with torch.no_grad():
        alone = torch.cat([found.module(record) for record in other.split(1)])
    torch.testing.assert_close(after, alone, rtol=1e-4, atol=1e-5)


def test_each_kind_of_machine_computes_its_own_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = made("scattering:scales=1,width=3")
    for machine in ("this", "this", "another"):
        monkeypatch.setattr(extractor, "describe_machine", lambda device, kind=machine: f"{kind} {device}")
        found.apply(records(3), tmp_path)
    assert len(list(tmp_path.glob("*.npy"))) == 2


@pytest.mark.parametrize(
    ("name", "what"), [("Late", "'most'"), ("LateInClass", "LateInClass.most"), ("LateInFile", "backbone.MOST")]
)
def test_what_begins_to_remember_after_its_trial_is_refused(own: Path, name: str, what: str) -> None:
    """Wherever it remembers: one record would move the features of all that follow."""
    found = made({"extractor": f"backbone:{name}", "trained_on": "nothing"})
    found.apply(records(3))
    with pytest.raises(UserError, match=rf"{what}.*must be frozen"):
        found.apply(2000 * records(4))


def test_features_that_are_not_finite_are_refused(own: Path) -> None:
    with pytest.raises(UserError, match="are not finite"):
        made({"extractor": "backbone:Inverse", "trained_on": "nothing"}).apply(0 * records(3))


def test_what_weights_were_trained_on_is_asked_for(own: Path) -> None:
    with pytest.raises(UserError, match=r"features\.trained_on"):
        made("backbone:factory")
    assert "which no data have trained" in made("backbone:factory:trained_on=nothing").origin


def test_weights_that_do_not_fit_are_refused(own: Path) -> None:
    save_file({"other": torch.zeros(2), "1.weight": torch.zeros(2, 3)}, own / "w.safetensors")
    spec = {"extractor": "backbone:factory", "weights": own / "w.safetensors", "trained_on": "noise"}
    with pytest.raises(UserError) as refusal:
        made(spec)
    told = str(refusal.value)
    assert told.startswith(
        "The weights do not fit the network 'backbone:factory' of features: they have '1.weight' of shape (2, 3) "
        "instead of (3,); they lack '0.weight', '0.bias', '1.bias', "
    )
    assert told.endswith(
        "; the network has no 'other'. Give the weights of this network, or build the one that they were saved from."
    )
    (own / "w.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match="no safetensors file"):
        made(spec)


def test_tensors_that_no_file_saves_decide_features(own: Path) -> None:
    spec = {"extractor": "backbone:Shifted", "trained_on": "nothing"}
    found = made(spec)
    again = rebuild(found.document(), SHAPE, found.tensors())
    assert again.digest == found.digest
    sys.modules["backbone"].Shifted.by = 2.0  # as a factory would that reads them from a file of its own
    assert made(spec).digest != found.digest


def test_code_that_has_changed_since_is_told(own: Path) -> None:
    found = made("backbone:factory:trained_on=nothing")
    (own / "backbone.py").write_text(BACKBONE + "\n# another\n")
    with pytest.raises(UserError, match="another version of the code"):
        rebuild(found.document(), SHAPE, found.tensors())


@pytest.mark.slow
def test_a_program_is_an_extractor(own: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 5)).eval()
    dynamic = ({0: torch.export.Dim.DYNAMIC},)
    torch.export.save(torch.export.export(module, (torch.zeros(2, *SHAPE),), dynamic_shapes=dynamic), own / "net.pt2")
    found = made({"extractor": "net.pt2", "trained_on": "nothing"})
    assert torch.allclose(found.apply(records(3)), module(records(3)), atol=1e-5)
    again = rebuild(found.document(), SHAPE, found.tensors())
    assert again.digest == found.digest
    torch.export.save(torch.export.export(nn.Flatten(), (torch.zeros(4, *SHAPE),)), own / "fixed.pt2")
    with pytest.raises(UserError, match="must be exported for any number of records"):
        made({"extractor": "fixed.pt2", "trained_on": "nothing"})
    (own / "net.pt2").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"no torch\.export program"):
        made({"extractor": "net.pt2", "trained_on": "nothing"})


def test_text_is_looked_up_in_a_frozen_embedding(own: Path) -> None:
    found = made({"extractor": "backbone:tokens", "trained_on": "nothing"}, (7,))
    assert found.apply(torch.randint(0, 50, (3, 7)).float()).shape == (3, 28)


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    token = extraction_watch.set(lambda done, many: told.append((done, many)))
    try:
        made("scattering:scales=1,width=3").apply(records(AT_ONCE + 1))
    finally:
        extraction_watch.reset(token)
    assert told == [(AT_ONCE, AT_ONCE + 1), (AT_ONCE + 1, AT_ONCE + 1)]
