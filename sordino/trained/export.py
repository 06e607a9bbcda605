"""Export of a model for other programs: ONNX, a torch program, or safetensors, with a description inside.

It is the server's model, or what a client predicts with. The network takes encoded records and gives class
probabilities. The description, as JSON, holds the schema, the names of the classes and `recipe`: how each input of the
network is computed from one cell of a table's row (`sordino.data.schema.Feature`).
"""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sordino.errors import UserError, unknown, writing
from sordino.tasks import Task
from sordino.trained.models import ABOUT, Models
from sordino.util.files import write_whole

INPUT = "records"
"""Name of the network's input; its output is called as the task says."""


class Predicting(nn.Module):
    """A network whose output is what the task predicts: for classes their probabilities."""

    def __init__(self, task: Task, network: nn.Module) -> None:
        super().__init__()
        self.task, self.network = task, network

    def forward(self, records: Tensor) -> Tensor:
        return self.task.predict(self.network(records))


def export(models: Models, client: str | int | None, kind: str, path: Path) -> None:
    """Write what a client predicts with, or, where `client` is None, the server's model; a blended model is one network
    like any other."""
    if kind not in FORMATS:
        raise unknown("format", kind, FORMATS)
    check_installed(kind)
    network = Predicting(models.about.meaning.task, models.predictor(client)).eval()
    about = description(models, client)
    example = torch.zeros(2, *models.about.shape)
    if path.is_dir():
        raise UserError(f"{path} is a folder: name the file that the model goes to.")
    try:
        contents = FORMATS[kind](network, example, about)
    except UserError:
        raise
    except Exception as error:  # of many kinds: exporters know some operations and not others
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"torch cannot write the network {about['network']!r} as {kind}: {said}") from error
    with writing(path):
        write_whole(path, contents)


def check_installed(kind: str) -> None:
    """Refuse, before any work, where a package is missing."""
    if kind == "onnx" and any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript")):
        raise UserError('Writing ONNX needs onnx and onnxscript; install them with: pip install "sordino[export]".')


def description(models: Models, client: str | int | None) -> dict[str, Any]:
    """Description of the network, for JSON; `client` is null in that of the server's model."""
    about = models.about
    schema = about.meaning.schema
    features = {} if schema is None else {"features": schema.features(), "recipe": schema.recipe()}
    name = None if client is None else about.clients[about.number(client)]
    whole = about.document() | {"client": name, "input": INPUT, "output": about.meaning.task.output}
    if client is not None and models.threshold is not None:
        whole["threshold"] = models.threshold
    return {key: value for key, value in whole.items() if key != "clients"} | features


def _onnx(network: nn.Module, example: Tensor, about: dict[str, Any]) -> bytes:
    import onnx

    quiet = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    before = [one.level for one in quiet]
    for one in quiet:
        one.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):  # the exporter tells of its steps
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                network,
                (example,),
                input_names=[INPUT],
                output_names=[about["output"]],
                dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
                dynamo=True,
                verbose=False,
            )
    finally:
        for one, level in zip(quiet, before, strict=True):
            one.setLevel(level)
    if program is None:
        raise UserError("torch did not make an ONNX program of this network.")
    made = program.model_proto
    made.metadata_props.append(onnx.StringStringEntryProto(key=ABOUT, value=json.dumps(about)))
    onnx.checker.check_model(made)
    contents: bytes = made.SerializeToString()
    return contents


def _torch(network: nn.Module, example: Tensor, about: dict[str, Any]) -> bytes:
    with warnings.catch_warnings():  # of views into one tensor, which all parameters are
        warnings.simplefilter("ignore")
        program = torch.export.export(network, (example,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
        contents = io.BytesIO()
        torch.export.save(program, contents, extra_files={f"{ABOUT}.json": json.dumps(about)})
    return contents.getvalue()


def _safetensors(network: nn.Module, example: Tensor, about: dict[str, Any]) -> bytes:
    from safetensors.torch import save

    assert isinstance(network, Predicting)
    tensors = {name: tensor.contiguous() for name, tensor in network.network.state_dict().items()}
    return save(tensors, metadata={ABOUT: json.dumps(about)})


FORMATS: dict[str, Callable[[nn.Module, Tensor, dict[str, Any]], bytes]] = {
    "onnx": _onnx,
    "torch": _torch,
    "safetensors": _safetensors,
}
ENDINGS = {"onnx": ".onnx", "torch": ".pt2", "safetensors": ".safetensors"}
