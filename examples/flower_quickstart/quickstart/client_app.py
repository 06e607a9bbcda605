"""The app at a node. Only the import and `mods` are new."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import fit, load
from sordino.flower.mod import SiteMod

app = ClientApp(mods=[SiteMod()])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this node's records."""
    x, y = load(str(context.node_config["records"]))
    config = message.content["config"]
    arrays = message.content["arrays"].to_numpy_ndarrays()
    trained = fit(arrays, x, y, int(config["epochs"]), float(config["learning-rate"]))
    content = {
        "arrays": ArrayRecord(trained),
        "metrics": MetricRecord({"num-examples": len(y)}),  # it does not leave the node any more
    }
    return Message(RecordDict(content), reply_to=message)
