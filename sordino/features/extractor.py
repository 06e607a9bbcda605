"""Feature extractors: frozen public functions of one record (scattering, or a user's own module), built from the key
`features`, checked, cached, and rebuilt from a description and weights.

    extractor = build(read_choice("scattering"), (1, 28, 28), record_level=False)
    features = extractor.apply(images)            # (records, 128), from the cache on a second call
    extractor.digest                              # part of a run's identity and of a deployment's terms

Extraction is public code with public weights and looks at one record at a time, so that the features of a record are
one record: whatever is promised to records or clients holds as it does without features.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor, nn
from torch.func import vmap

from sordino.data.dataset import Dataset
from sordino.data.schema import list_values
from sordino.data.sources import load
from sordino.errors import FAILURES, UserError
from sordino.experiment.identity import describe_machine, source_files, tensors_of
from sordino.features import cache
from sordino.features.choice import PROGRAM, FeatureChoice
from sordino.features.projection import (
    PUBLIC_RECORDS,
    SHIPPED_DATA,
    SHIPPED_SHAPE,
    WIDEST,
    Projected,
    Projection,
    UnitLength,
    chosen_records,
    principal,
    random_directions,
    read_projection,
    record_hashes,
    shipped,
)
from sordino.features.scattering import Scattering, StandardisedOrders
from sordino.federation.purity import Homes, classes_of, first_change
from sordino.models.checks import (
    find_change_in_evaluation,
    find_change_since,
    held_by,
    mixes_in_evaluation,
    remembers_first,
)
from sordino.models.own import call
from sordino.models.tokens import declare_tokens, examples
from sordino.util.display import extraction_watch
from sordino.util.files import read_file
from sordino.util.import_by_name import current_directory_importable, find, user_code_error

AT_ONCE = 64
"""Records that are extracted together. The last ones are padded to as many, so that no record's features depend on how
many others there are."""
WIDTHS = {False: 128, True: 256}
"""Default width of projected scattering, by whether records are protected: noise on whole clients asks for less."""
MAX_EXTRACTOR_BYTES = 1 << 33
"""Size limit of a file of weights in bytes."""
VERSION = 1
"""Version of the package's extractors: another gives other features."""
FEW = 0.01
"""Share of records up to which clients' and public ones may be equal by chance, as empty images are."""
CHANGES = "changes as records pass: an extractor must be frozen."
NOTHING = "nothing"
"""Declaration of weights that no data have trained."""
Files = Callable[[str], bytes | None]
"""Contents of a file by its SHA-256; None where there is none."""


@dataclass(frozen=True)
class Extractor:
    """A frozen, public function of one record."""

    choice: FeatureChoice
    """The settings, with what was decided."""
    module: nn.Module
    """From records (records, *shape) to features (records, *output), in evaluation mode."""
    shape: tuple[int, ...]
    """Shape of one record."""
    output: tuple[int, ...]
    """Shape of one record's features."""
    digest: str
    """SHA-256 of everything that decides features: settings, code and weights."""
    origin: str
    """Sentence on the data that it was made of, for the statement."""
    program: bytes | None = None
    """Content of a torch.export program."""
    made_of: frozenset[int] = frozenset()
    """Hashes of the public records that a projection was made of."""
    notes: tuple[str, ...] = ()
    """Sentences for whoever starts a run."""

    def apply(self, x: Tensor, folder: Path | None = None, device: str = "cpu") -> Tensor:
        """Return the features of records `x`: read from the cache, or computed and put there.

        Args:
            x: (records, *shape), float32.
            folder: folder of the cache; by default the user's.
            device: where the module computes.
        """
        where = cache.cache_folder() if folder is None else folder
        # Another machine may round otherwise, but a run that repeats its noise must repeat its features to the bit.
        # What earlier versions have kept of a user's code may be of records that it mixed.
        made_by = [self.digest, cache.digest_of_records(x), describe_machine(device), self.choice.is_own]
        key = hashlib.sha256(json.dumps(made_by).encode()).hexdigest()
        return cache.load_or_compute(where, key, (len(x), *self.output), lambda: self.compute(x, device))

    def compute(self, x: Tensor, device: str = "cpu") -> Iterator[np.ndarray]:
        """Compute the features of records, some at a time; values that are not finite are refused, and so is a module
        that holds something else afterwards, or whose classes and files do."""
        own = self.choice.is_own
        module = OneRecordAtATime.of(self.module.to(device), self.shape, device) if own else self.module
        before = held_by(self.module) if own else {}
        homes = Homes.of(classes_of(self.module) if own else [], self.module)
        seen = homes.seen({}, self.module)
        for part in in_parts(module, x, device):
            if not np.isfinite(part).all():
                raise UserError(
                    f"The features {self.choice.describe()!r} of some record are not finite: correct the extractor, or "
                    "the records."
                )
            yield part
        changed = find_change_since(before, self.module) if own else None
        changed = changed or first_change(seen, homes.seen({}, self.module))
        if changed is not None:
            raise UserError(f"The {changed} of the features {self.choice.describe()!r} {CHANGES}")

    def tensors(self) -> dict[str, Tensor]:
        """Weights of the extractor, from which `rebuild` makes it again."""
        if self.program is not None:
            return {"program": torch.frombuffer(bytearray(self.program), dtype=torch.uint8)}
        return {name: value.detach().cpu().contiguous() for name, value in self.module.state_dict().items()}

    def document(self) -> dict[str, Any]:
        """Description for JSON, from which `rebuild` makes the extractor again."""
        return {
            "choice": self.choice.document(),
            "shape": list(self.output),
            "digest": self.digest,
            "origin": self.origin,
        }


class OneRecordAtATime(nn.Module):
    """A user's frozen module that is handed one record at a time, so that no record's features depend on another's,
    whatever its code does with a batch."""

    def __init__(self, module: nn.Module, together: bool) -> None:
        """`together` says that it can be run for many single records under `vmap`: faster, and equal but for
        rounding."""
        super().__init__()
        self.module, self.together = module, together

    @classmethod
    def of(cls, module: nn.Module, shape: tuple[int, ...], device: str) -> OneRecordAtATime:
        """Choose how, by records that are nobody's: what is chosen depends on no client's."""
        x = examples(module, 3, shape, seed=4).to(device)
        with torch.no_grad():
            one_by_one = cls(module, together=False)(x)
            try:
                together = torch.allclose(cls(module, together=True)(x), one_by_one, rtol=1e-4, atol=1e-5)
            except Exception:  # of many kinds: it cannot be run so
                together = False
        return cls(module, together)

    def forward(self, x: Tensor) -> Tensor:
        if not self.together:
            return torch.cat([self.module(record) for record in x.split(1)])
        found: Tensor = vmap(lambda record: self.module(record.unsqueeze(0)).squeeze(0))(x)
        return found


def in_parts(module: nn.Module, x: Tensor, device: str = "cpu") -> Iterator[np.ndarray]:
    """Outputs of a frozen module for records, in parts of equal size but the last."""
    tell, module = extraction_watch.get(), module.to(device)
    for begin in range(0, len(x), AT_ONCE):
        part = x[begin : begin + AT_ONCE]
        missing = AT_ONCE - len(part)
        whole = torch.cat([part, part[-1:].expand(missing, *part.shape[1:])]) if missing else part
        with torch.no_grad():
            found = module(whole.to(device))[: len(part)]
        if tell is not None:
            tell(begin + len(part), len(x))
        yield found.float().cpu().numpy()


def build(
    choice: FeatureChoice,
    shape: tuple[int, ...],
    record_level: bool,
    data_dir: Path | None = None,
    files: Files | None = None,
) -> Extractor:
    """Build an extractor for records of `shape`, or refuse it with a sentence.

    Args:
        choice: the settings.
        shape: shape of one record.
        record_level: whether records are protected, which decides the default width.
        data_dir: folder of data sets, for public ones.
        files: finds a file by its digest, where settings do not name it: at a site.
    """
    choice, content = _with_content(choice, files)
    if choice.is_own:
        return _own(choice, shape, content)
    return _scattering(choice, shape, record_level, data_dir, content)


def rebuild(document: Mapping[str, Any], shape: tuple[int, ...], tensors: Mapping[str, Tensor]) -> Extractor:
    """Make an extractor again from its `document` and `tensors`; code that has changed since is refused."""
    choice = FeatureChoice(**document["choice"])
    if not choice.is_own:
        projection = None
        if choice.projection != "none":
            projection = Projection(tensors["2.mean"], tensors["2.components"], "")
        found = _assembled(choice, shape, projection, str(document["origin"]), ())
    elif choice.is_program:
        found = _own(choice, shape, tensors["program"].numpy().tobytes())
    else:
        found = _own(choice, shape, None, tensors)
    if found.digest != document["digest"]:
        raise UserError(
            f"These models were trained on features made by another version of the code of {choice.extractor!r}: "
            "restore that version, or train again."
        )
    return found


def _with_content(choice: FeatureChoice, files: Files | None) -> tuple[FeatureChoice, bytes | None]:
    """The settings with the digest of their file, and its content; a file that is not the one meant is refused."""
    path = Path(choice.extractor) if choice.is_program else choice.weights
    if files is not None:  # a site opens no file that a server names
        if choice.digest is None:
            return choice, None
        content = files(choice.digest)
        if content is None:
            raise UserError(
                f"The features {choice.extractor!r} need the file of weights with SHA-256 {choice.digest}, which is "
                "not among this site's `feature_files`."
            )
        return choice, content
    if path is None:
        if choice.digest is not None:
            raise UserError("features.digest is that of a file of weights: name the file with features.weights.")
        return choice, None
    try:
        content = read_file(path, MAX_EXTRACTOR_BYTES)
    except OSError as error:
        raise UserError(f"The file {path} of features cannot be read: {error.strerror}.") from error
    found = hashlib.sha256(content).hexdigest()
    if choice.digest not in (None, found):
        raise UserError(
            f"The file {path} of features has SHA-256 {found}, and {choice.digest} is wanted: put back the file of "
            "then, or leave out features.digest and start a new run."
        )
    return choice.model_copy(update={"digest": found}), content


def _scattering(
    choice: FeatureChoice, shape: tuple[int, ...], record_level: bool, data_dir: Path | None, content: bytes | None
) -> Extractor:
    """Scattering with its projection."""
    transform = Scattering(shape, choice.scales, choice.angles, choice.pool)
    many = shape[0] * sum(transform.coefficients) * transform.rows * transform.columns
    usual = (choice.scales, choice.angles, choice.pool) == (2, 8, 3) and shape == SHIPPED_SHAPE
    fits = usual and choice.public in (None, SHIPPED_DATA)
    kind = choice.projection or ("public" if content is not None or choice.public or fits else "random")
    notes: tuple[str, ...] = ()
    width = min(choice.width or WIDTHS[record_level], many)
    if kind == "none":
        projection, origin = None, "The features of records are scattering coefficients, which no data have trained."
        choice = choice.model_copy(update={"projection": "none"})
        return _assembled(choice, shape, projection, origin, notes)
    if kind == "random":
        if choice.projection is None:
            notes = (
                f"No projection of public images fits images of {'x'.join(map(str, shape))}: scattering coefficients "
                "are projected at random. Public images of this shape make better features: name them with "
                "features.public.",
            )
        projection = Projection(*random_directions(many, width, choice.seed), "nothing")
        origin = "The features of records are scattering coefficients, projected at random: no data have trained them."
    else:
        projection = _public_projection(choice, transform, fits, data_dir, content, many, width)
        if choice.width is None:
            width = min(width, projection.components.shape[1])
        projection = projection.narrow(width)
        origin = (
            "The features of records are scattering coefficients, projected by principal components of public data: "
            f"{projection.origin}."
        )
    choice = choice.model_copy(update={"projection": kind, "width": projection.components.shape[1]})
    return _assembled(choice, shape, projection, origin, notes)


def _public_projection(
    choice: FeatureChoice,
    transform: Scattering,
    fits: bool,
    data_dir: Path | None,
    content: bytes | None,
    many: int,
    width: int,
) -> Projection:
    """The projection by principal components: of a file, of the package, or of public data that are read."""
    if content is not None:
        assert choice.weights is not None or choice.digest is not None
        found = read_projection(content, choice.weights or Path("features"), choice.trained_on)
    elif fits:
        found = shipped()
    elif choice.public is None:
        raise UserError(
            'features.projection = "public" needs public images: name them with features.public, as in --set '
            "features.public=fashion-mnist."
        )
    else:
        found = _components(choice.public, transform, data_dir, max(width, WIDEST))
    if len(found.mean) != many:
        raise UserError(
            f"The projection of {found.origin} is for {len(found.mean):,} scattering coefficients, and these images "
            f"have {many:,}: make one of images of their shape, with equal scales, angles and pool."
        )
    return found


def _components(name: str, transform: Scattering, data_dir: Path | None, width: int) -> Projection:
    """Components of a public data set, kept in the cache."""
    records = chosen_records(load(name, data_dir))
    if tuple(records.shape[1:]) != (transform.channels, *transform.sides):
        raise UserError(
            f"The public data {name!r} have records of shape {tuple(records.shape[1:])}, and those of the clients have "
            f"{(transform.channels, *transform.sides)}: name public images of the same shape."
        )
    frozen = nn.Sequential(transform, StandardisedOrders(transform.coefficients)).eval()
    many = transform.channels * sum(transform.coefficients) * transform.rows * transform.columns
    settings = [VERSION, transform.scales, transform.angles, transform.rows, transform.columns, width, PUBLIC_RECORDS]
    key = hashlib.sha256(f"components {settings} {cache.digest_of_records(records)}".encode()).hexdigest()

    def make() -> Iterator[np.ndarray]:
        coefficients = np.concatenate(list(in_parts(frozen, records))).astype(np.float64)
        mean, components = principal(coefficients, width)
        whole = np.zeros((1 + many, width), dtype=np.float32)  # directions without variance stay zero
        whole[0, 0], whole[1:, : components.shape[1]] = components.shape[1], components.numpy()
        yield np.concatenate([whole, np.pad(mean.numpy()[:, None], ((1, 0), (0, 0)))], axis=1)

    found = cache.load_or_compute(cache.cache_folder(), key, (1 + many, width + 1), make)
    there = int(found[0, 0])
    return Projection(found[1:, -1].clone(), found[1:, :there].clone(), name, frozenset(record_hashes(records)))


def _assembled(
    choice: FeatureChoice, shape: tuple[int, ...], projection: Projection | None, origin: str, notes: tuple[str, ...]
) -> Extractor:
    """Scattering with a given projection."""
    transform = Scattering(shape, choice.scales, choice.angles, choice.pool)
    last: nn.Module = UnitLength() if projection is None else Projected(projection.mean, projection.components)
    module = nn.Sequential(transform, StandardisedOrders(transform.coefficients), last).eval()
    many = shape[0] * sum(transform.coefficients) * transform.rows * transform.columns
    output = (many,) if projection is None else (projection.components.shape[1],)
    settings = [VERSION, list(shape), choice.scales, choice.angles, choice.pool]
    digest = _digest(["scattering", settings], module.state_dict())
    made_of = frozenset() if projection is None else projection.made_of
    return Extractor(choice, module, shape, output, digest, origin, made_of=made_of, notes=notes)


def _own(
    choice: FeatureChoice,
    shape: tuple[int, ...],
    content: bytes | None,
    tensors: Mapping[str, Tensor] | None = None,
) -> Extractor:
    """The user's own extractor: code with weights, or a program."""
    name = choice.extractor
    if choice.trained_on is None:
        raise UserError(
            f'Say which public data the features {name!r} were trained on, as in features.trained_on = "imagenet"; '
            f'"{NOTHING}" where their weights are random. It stands in the privacy statement: features that were '
            "trained on the clients' own records would tell of them without noise."
        )
    program = None
    if choice.is_program:
        if content is None:
            raise UserError(f"The program {name!r} is named without its SHA-256, by which a site finds it.")
        program, module = content, _program(name, content)
        digest = hashlib.sha256(b"program" + content).hexdigest()
    else:
        module = _from_code(choice, shape)
        if content is not None:
            tensors = _weights(name, content)
        if tensors is not None:
            _load_weights(name, module, tensors)
        module.eval().requires_grad_(False)
        declare_tokens(module, shape)
        code = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(source_files(find(name)))]
        digest = _digest(["own", list(shape), choice.options, code], module.state_dict() | dict(tensors_of(module)))
    output = try_out(name, module, shape)
    with torch.no_grad():
        module(torch.zeros(1, *shape))  # what it makes once is there before the first client's record
    trained = "which no data have trained" if choice.trained_on == NOTHING else f"trained on {choice.trained_on}"
    origin = f"The features of records are outputs of the frozen network {name}, {trained}, as the experiment declares."
    return Extractor(choice, module, shape, output, digest, origin, program)


def _from_code(choice: FeatureChoice, shape: tuple[int, ...]) -> nn.Module:
    name = choice.extractor
    target = find(name)
    if isinstance(target, nn.Module) or not callable(target):
        raise UserError(f"{name!r} is a {type(target).__name__} object; name the class, or a function that makes it.")
    with current_directory_importable(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # weights that the factory draws are the same everywhere
        module = call(name, target, {"shape": shape}, choice.options)
    if not isinstance(module, nn.Module):
        raise UserError(f"{name!r} gives a {type(module).__name__}; features come from a torch.nn.Module.")
    return module


def _weights(name: str, content: bytes) -> dict[str, Tensor]:
    try:
        return load_tensors(content)
    except (SafetensorError, ValueError) as error:
        raise UserError(f"The weights of the features {name!r} are no safetensors file: {error}.") from error


def _load_weights(name: str, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    try:
        module.load_state_dict(dict(tensors), strict=True)
    except RuntimeError as error:
        own = {key: tuple(one.shape) for key, one in module.state_dict().items()}
        given = {key: tuple(one.shape) for key, one in tensors.items()}
        shared = [key for key in own if key in given and own[key] != given[key]]
        parts = {
            "they have": [f"{key!r} of shape {given[key]} instead of {own[key]}" for key in shared],
            "they lack": [repr(key) for key in own if key not in given],
            "the network has no": [repr(key) for key in given if key not in own],
        }
        told = "; ".join(f"{what} {list_values(found)}" for what, found in parts.items() if found)
        raise UserError(
            f"The weights do not fit the network {name!r} of features: {told or ' '.join(str(error).split())}. "
            "Give the weights of this network, or build the one that they were saved from."
        ) from error


def _program(name: str, content: bytes) -> nn.Module:
    try:
        module = torch.export.load(io.BytesIO(content)).module()
    except Exception as error:  # of many kinds
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{name!r} is no torch.export program that this version of torch can read: {said}") from error
    return module.requires_grad_(False)


def try_out(name: str, module: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the features of one record; refuse a module that mixes records, draws random numbers,
    remembers what it sees, or fails."""
    with torch.random.fork_rng(devices=[]):
        try:
            tried = copy.deepcopy(module)
            with torch.no_grad():
                first = tried(torch.zeros(1, *shape))
            if not isinstance(first, Tensor) or first.dim() < 2 or len(first) != 1 or not first.is_floating_point():
                got = f"shape {tuple(first.shape)}" if isinstance(first, Tensor) else f"a {type(first).__name__}"
                raise UserError(
                    f"The features {name!r} of one record of shape {shape} have {got}; they must be floating-point "
                    "numbers of shape (1, ...), one row for each record."
                )
            x, others = examples(tried, 6, shape, seed=0).split(3)
            with torch.no_grad():
                torch.manual_seed(0)
                again = tried(x)
                torch.manual_seed(1)
                same = torch.equal(again, tried(x))
            changed = find_change_in_evaluation(tried, x, others)
            mixed = mixes_in_evaluation(tried, x, others)
            remembering = remembers_first(module, x, others)
        except UserError:
            raise
        except FAILURES as error:
            failed = f"The features {name!r} fail on records of shape {shape}"
            if name.endswith(PROGRAM):
                failed += " (a program must be exported for any number of records: docs/features.md)"
            raise user_code_error(failed, error) from error
    if not same:
        raise UserError(f"The features {name!r} of a record are not the same each time: take out what draws numbers.")
    if changed is not None:
        raise UserError(f"The {changed} of the features {name!r} {CHANGES}")
    if remembering:
        raise UserError(
            f"The features {name!r} of all records depend on those that are seen first: an extractor must be frozen. "
            "Fix what it takes from them, such as a mean, before."
        )
    if mixed:
        raise UserError(
            f"The features {name!r} of a record depend on the other records of a batch: an extractor sees one record "
            "at a time. Take means, norms and attention over the other dimensions only."
        )
    return tuple(first.shape[1:])


def _digest(settings: list[Any], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, tensor in sorted(tensors.items()):
        whole = tensor.detach().cpu().contiguous()
        digest.update(repr((name, str(whole.dtype), tuple(whole.shape))).encode())
        digest.update(whole.reshape(-1).view(torch.uint8).numpy().data if whole.numel() else b"")
    return digest.hexdigest()


def check_apart(extractor: Extractor, dataset: Dataset) -> Dataset:
    """Refuse clients' records of which the public projection was made, as `public` records that are the clients' own
    are refused; single ones are told of.

    Args:
        extractor: the extractor.
        dataset: the records before they are dealt.
    """
    told = count_shared(extractor, dataset.x)
    return replace(dataset, disclosed=(*dataset.disclosed, *told)) if told else dataset


def count_shared(extractor: Extractor, x: Tensor) -> list[str]:
    """Sentence on clients' records `x` of which the public projection was made, none where there are none; more than
    single ones are refused."""
    if not extractor.made_of:
        return []
    shared = sum(one in extractor.made_of for one in record_hashes(x))
    if shared > FEW * min(len(x), len(extractor.made_of)):
        raise UserError(
            f"{shared:,} of the public records that the features are made of are the clients' own: name other public "
            "images with features.public, or take projection=random, which needs none."
        )
    if not shared:
        return []
    return [
        f"{shared:,} of the public records that the features are made of equal{'s' if shared == 1 else ''} a client's: "
        "features tell of these without noise. Take them out."
    ]
