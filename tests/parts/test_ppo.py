"""The agent: its losses against torchrl's, that it learns, and what it is rewarded for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sordino.learning.network import Learner, Records
from sordino.learning.parameters import flatten
from sordino.parts.ppo import LearnedThreshold, Ppo, advantages, gradient, trimmed_mean
from sordino.tasks import Classification


def transitions(agent: Ppo, count: int) -> tuple[dict, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    state = agent.begin(generator)
    rows = []
    for _ in range(count):
        before, after = torch.rand(2, generator=generator), torch.rand(2, generator=generator)
        action, log_density = agent.act(state, before, generator)
        reward = float(torch.randn((), generator=generator))
        rows.append(torch.cat([before, torch.tensor([action, log_density, reward]), after]))
    return state, torch.stack(rows)


def test_advantages_by_hand() -> None:
    assert advantages(torch.tensor([1.0, 2.0, 4.0]), 0.5).tolist() == [3.0, 4.0, 4.0]


@pytest.mark.filterwarnings("ignore")
def test_losses_are_torchrls() -> None:
    """Clipped surrogate, generalized advantages and critic loss, after the policy has moved."""
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torch import nn
    from torch.distributions import Beta
    from torchrl.modules import ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    agent = Ppo()
    state, rows = transitions(agent, 12)
    before, after = rows[:, :2], rows[:, 5:]
    action, log_density, reward = rows[:, 2], rows[:, 3], rows[:, 4]
    moved = state["actor"] + 0.3 * torch.randn(len(state["actor"]), generator=torch.Generator().manual_seed(1))

    value, following = agent.value(state["critic"], before), agent.value(state["critic"], after)
    none = torch.zeros(12, 1, dtype=torch.bool)
    theirs, _ = generalized_advantage_estimate(
        agent.discount, agent.trace, value.unsqueeze(1), following.unsqueeze(1), reward.unsqueeze(1), none, none
    )
    target = reward + agent.discount * following
    ours = advantages((target - value).detach(), agent.discount * agent.trace)
    assert torch.allclose(ours, theirs.squeeze(1), atol=1e-5)

    class Policy(nn.Module):
        def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            chosen = agent.policy(moved, observation)
            return chosen.concentration1.unsqueeze(1), chosen.concentration0.unsqueeze(1)

    class Critic(nn.Module):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return agent.value(state["critic"], observation).unsqueeze(1)

    actor = ProbabilisticActor(
        TensorDictModule(Policy(), ["observation"], ["concentration1", "concentration0"]),
        in_keys=["concentration1", "concentration0"],
        distribution_class=lambda concentration1, concentration0: torch.distributions.Independent(
            Beta(concentration1, concentration0), 1
        ),
        return_log_prob=True,
    )
    loss = ClipPPOLoss(
        actor,
        ValueOperator(Critic(), in_keys=["observation"]),
        clip_epsilon=agent.clip,
        entropy_bonus=False,
        loss_critic_type="l2",
        critic_coeff=1.0,
        normalize_advantage=False,
    )
    batch = TensorDict(
        {
            "observation": before,
            "action": action.unsqueeze(1),
            "action_log_prob": log_density,
            "advantage": ours.unsqueeze(1),
            "value_target": target.detach().unsqueeze(1),
        },
        batch_size=[12],
    )
    theirs_losses = loss(batch)
    ours_loss = agent.actor_loss(moved, before, action, log_density, ours)
    assert float(ours_loss) == pytest.approx(float(theirs_losses["loss_objective"]), abs=1e-5)
    critic = agent.critic_loss(state["critic"], before, target.detach())
    assert float(critic) == pytest.approx(float(theirs_losses["loss_critic"]), abs=1e-5)


def test_an_update_lowers_the_critics_loss_and_empties_the_replay() -> None:
    agent = Ppo()
    state, rows = transitions(agent, 10)
    later = agent.updated({**state, "transitions": rows})
    target = rows[:, 4] + agent.discount * agent.value(state["critic"], rows[:, 5:]).detach()
    before = agent.critic_loss(state["critic"], rows[:, :2], target)
    assert agent.critic_loss(later["critic"], rows[:, :2], target) < before
    assert len(later["transitions"]) == 0
    assert not torch.equal(later["actor"], state["actor"])
    assert torch.isfinite(gradient(later["actor"], lambda flat: agent.policy(flat, rows[:, :2]).mean.sum())).all()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
def test_it_finds_the_best_threshold_of_a_bandit(seed: int) -> None:
    """Thresholds in [0.05, 2], the best is 1; the reward falls with the distance. 200 steps."""
    agent, generator = Ppo(), torch.Generator().manual_seed(seed)
    state, observation = agent.begin(generator), torch.tensor([1.0, 0.5])
    for _ in range(200):
        action, log_density = agent.act(state, observation, generator)
        reward = -abs(0.05 + 1.95 * action - 1.0)
        state = agent.remember(state, observation, action, log_density, reward, observation)
    assert 0.05 + 1.95 * agent.mean_action(state, observation) == pytest.approx(1.0, rel=0.1)


def test_trimmed_mean_keeps_the_tenth_to_the_eightieth_percentile() -> None:
    # Of 50 clients, 35 remain; moving one of 40 zeros to B shifts the mean by B/35.
    values = torch.tensor([0.0] * 40 + [7.0] * 10)
    assert trimmed_mean(values) == 0.0
    values[0] = 7.0
    assert float(trimmed_mean(values)) == pytest.approx(7.0 / 35)


class Stage:
    """A federation and its replies, in each round of which loss and accuracy are as told."""

    def __init__(self, reads: str, every: int = 1) -> None:
        self.round, self.every, self.figures = -1, every if reads == "metrics" else 1, (0.0, 0.0)
        self.rule = LearnedThreshold(reads=reads, every=every)  # type: ignore[arg-type]
        self.state = self.rule.begin(self, 0.5)  # type: ignore[arg-type]
        self.used: list[dict[str, Any]] = []
        """The choice in force in each round."""

    def follow(self, loss: float, accuracy: float) -> None:
        self.round += 1
        self.figures = (loss, accuracy)
        self.used.append(self.state["choice"])
        self.state = self.rule.following(self.state, self, self, None)  # type: ignore[arg-type]

    def random(self, *purpose: object) -> torch.Generator:
        return torch.Generator().manual_seed(len(str(purpose)) + 100 * self.round + 1000)

    def judge(self, model: Any) -> tuple[float, float]:
        return self.figures

    def has(self, name: str) -> bool:
        return self.round % self.every == 0

    def mean(self, name: str) -> torch.Tensor:
        return torch.tensor(self.figures[name == "accuracy"])

    def rows(self, name: str) -> torch.Tensor:
        return self.mean(name).expand(10)


@pytest.mark.parametrize(("reads", "late"), [("public", 0), ("metrics", 1), ("bare", 1)])
def test_an_action_is_rewarded_for_the_model_that_it_clipped(reads: str, late: int) -> None:
    """Clients tell of the model after the last round, the server judges that after this one."""
    stage = Stage(reads)
    for loss in (3.0, 2.5, 2.3, 1.3, 1.2):
        stage.follow(loss, 0.5)
    remembered = stage.state["agent"]["transitions"]
    chosen = [choice for choice in stage.used if choice["by_policy"]]
    rewards = {0: [0.2, 1.0, 0.1], 1: [1.0, 0.1]}[late]
    assert remembered[:, 2].tolist() == pytest.approx([choice["action"] for choice in chosen][: 3 - late])
    assert remembered[:, 3].tolist() == pytest.approx([choice["log_density"] for choice in chosen][: 3 - late])
    assert remembered[:, 4].tolist() == pytest.approx(rewards, abs=1e-6)
    for row, choice in zip(remembered, chosen, strict=False):
        assert torch.equal(row[:2], choice["seen"]), "the policy's density is that of what it saw"
    states = {0: [2.5, 2.3, 1.3, 1.2], 1: [2.5, 2.3, 1.3]}[late]
    assert remembered[:, 0].tolist() == pytest.approx(states[:-1])
    assert remembered[:, 5].tolist() == pytest.approx(states[1:]), "where one transition ends, the next begins"
    assert remembered[:, 6].tolist() == [0.5] * len(remembered)


def test_metrics_that_are_rare_reward_the_action_that_was_in_force() -> None:
    stage = Stage("metrics", every=3)
    for number in range(13):
        stage.follow(3 - number / 10, 0.5)
    chosen = {id(choice): choice for choice in stage.used if choice["by_policy"]}
    actions = [choice["action"] for choice in chosen.values()]
    remembered = stage.state["agent"]["transitions"]
    assert remembered[:, 2].tolist() == pytest.approx(actions)
    assert remembered[:, 0].tolist() == pytest.approx([2.7, 2.4, 2.1])
    assert remembered[:, 5].tolist() == pytest.approx([2.4, 2.1, 1.8])
    assert len(actions) == 3, "chosen after rounds 4, 7 and 10, of which the last is in force until round 13"


def test_the_first_two_actions_are_drawn_uniformly() -> None:
    stage = Stage("public")
    for _ in range(4):
        stage.follow(1.0, 0.5)
    assert [choice["by_policy"] for choice in stage.used] == [False, False, True, True]
    first = torch.tensor([Stage("public").rule.begin(Fed(seed), 0.5)["choice"]["action"] for seed in range(200)])
    assert first.min() < 0.05, "less is left to chance than one in 30,000"
    assert first.max() > 0.95
    assert abs(float(first.mean()) - 0.5) < 0.09, "four standard errors"


class Fed(SimpleNamespace):
    """Another source of randomness for each seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(random=lambda *purpose: torch.Generator().manual_seed(seed))


def test_actions_are_thresholds_on_a_logarithmic_scale_around_the_first_one() -> None:
    rule = LearnedThreshold(low=0.05, high=2.0)
    assert [rule.threshold(action, 0.5) for action in (0.0, 0.5, 1.0)] == pytest.approx([0.025, 0.025 * 40**0.5, 1.0])
    assert rule.threshold(0.3, 5.0) == pytest.approx(10 * rule.threshold(0.3, 0.5))
    for action, clip in ((choice["action"], clip) for choice, clip in _chosen()):
        assert clip == pytest.approx(rule.threshold(action, 0.5))


def _chosen() -> list[tuple[dict[str, Any], float]]:
    stage, found = Stage("public"), []
    for _ in range(4):
        found.append((stage.state["choice"], stage.state["clip"]))
        stage.follow(1.0, 0.5)
    return found


def test_clients_tell_how_the_received_model_does() -> None:
    """Not the one they have just trained, which has been neither clipped nor noised."""
    torch.manual_seed(0)
    learner = Learner(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), Classification.numbered(3))
    x = torch.randn(12, 4)
    data, received = Records(x, (x.sum(dim=1) > 0).long(), learner, seed=1), flatten(learner.module)
    told = LearnedThreshold(reads="metrics").tell(torch.zeros(15), received + 5, {"global": received}, data)
    loss, accuracy = learner.loss_and_score(received, data.x, data.y)
    assert (float(told["loss"]), float(told["accuracy"])) == pytest.approx((loss, accuracy), rel=1e-6)
