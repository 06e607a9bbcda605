"""The app at the server. Only `PrivateStrategy` around the strategy is new."""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.task import begin
from sordino.flower.mod import PrivateStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds and print what the models cost."""
    config = context.run_config
    strategy = PrivateStrategy(
        FedAvg(),
        roster=str(config["roster"]),
        clip=float(config["clip"]),
        epsilon=float(config["epsilon"]),
        delta=float(config["delta"]),
        store=str(config["store"]),
    )
    told = ConfigRecord({"epochs": config["epochs"], "learning-rate": config["learning-rate"]})
    rounds = int(config["num-server-rounds"])
    strategy.start(grid, ArrayRecord(begin()), num_rounds=rounds, train_config=told)
    assert strategy.summary_of_run is not None
    print(f"epsilon {strategy.summary_of_run.epsilon} at delta {config['delta']}")
