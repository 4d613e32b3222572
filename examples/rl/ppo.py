"""Recurrent PPO (proximal policy optimization), and the two ways to run a recurrent layer over rollouts.

A rollout is T steps of N environments. Episodes begin anywhere in it, and no state may cross their boundaries.
The layers of lltm take them as ``reset``: one call per rollout, whatever the episodes are. Those of torch.nn have no
such argument: the rollout is cut wherever any of the episodes begins, and there is one call for each piece.
"""

from __future__ import annotations

import bisect
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import torch
from cartpole import ACTIONS, CartPoles
from torch import Tensor, nn

import lltm

State = tuple[Tensor, Tensor]
"""h and c. Of a GRU, c is h."""

LAST_EPISODES = 30


class Options(NamedTuple):
    """How an agent is trained."""

    updates: int = 40
    """The number of rollouts."""
    steps: int = 128
    """The number of steps of each environment in a rollout, T."""
    carts: int = 16
    """The number of environments, N."""
    epochs: int = 6
    """How often each rollout is used."""
    batches: int = 4
    """The number of parts into which the environments of a rollout are divided for the updates of an epoch."""
    rate: float = 2e-3
    """The learning rate at the beginning. It falls linearly to zero."""
    discount: float = 0.99
    smoothing: float = 0.95
    """Lambda of the generalized advantage estimates."""
    clip: float = 0.2
    """How far the probability of an action may move in one update, as a ratio."""
    max_gradient: float = 0.5
    """The largest norm of the gradients."""
    entropy: float = 0.0
    """The weight of the entropy bonus."""
    seed: int = 0


class Report(NamedTuple):
    """The metrics after a rollout and the updates with it."""

    steps: int
    """The number of steps of all environments so far."""
    length: float
    """The mean length of the last episodes that ended, at most LAST_EPISODES; NaN if none did."""
    collecting: float
    """The processor time spent on rollouts so far, in seconds."""
    learning: float
    """The processor time spent on updates so far, in seconds."""


def run(layer: nn.Module, input: Tensor, state: State | None, **options: Tensor) -> tuple[Tensor, State]:
    """Calls a layer, also a GRU, whose state is a single tensor."""
    if not isinstance(layer, nn.GRU | lltm.GRU):
        return layer(input, state, **options)
    output, h = layer(input, None if state is None else state[0], **options)
    return output, (h, h)


def run_with_resets(layer: nn.Module, input: Tensor, state: State, begins: Tensor) -> tuple[Tensor, State]:
    """Runs a layer over (T, N, I). Where ``begins`` (T, N) is true, an episode begins, and the state is zero."""
    if isinstance(layer, lltm.LLTM | lltm.LSTM | lltm.GRU):
        return run(layer, input, state, reset=begins)
    cuts = begins.any(1).nonzero().flatten().tolist()
    bounds = sorted({0, *cuts, len(input)})
    outputs = []
    for first, end in zip(bounds, bounds[1:], strict=False):
        goes_on = ~begins[first].unsqueeze(1)
        output, state = run(layer, input[first:end], (state[0] * goes_on, state[1] * goes_on))
        outputs.append(output)
    return torch.cat(outputs), state


class Agent(nn.Module):
    """A policy and a value function of everything that was observed since the episode began.

    Args:
        layer: a recurrent layer of two features, of lltm or of torch.nn.

    Inputs: observations (T, N, 2); the state, a pair of (1, N, H); begins (T, N), bool: whether an episode begins with
    the observation. Outputs: logits (T, N, 2) of the actions, values (T, N), and the state.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.policy = nn.Linear(layer.hidden_size, ACTIONS)
        self.value = nn.Linear(layer.hidden_size, 1)

    def initial_state(self, rows: int) -> State:
        return torch.zeros(1, rows, self.layer.hidden_size), torch.zeros(1, rows, self.layer.hidden_size)

    def forward(self, observations: Tensor, state: State, begins: Tensor) -> tuple[Tensor, Tensor, State]:
        output, state = run_with_resets(self.layer, observations, state, begins)
        return self.policy(output), self.value(output).squeeze(-1), state


def parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def twin_size(layer: type[nn.Module], features: int, hidden_size: int) -> int:
    """The largest state size with which a layer has no more parameters than an lltm.LLTM with this state size."""

    def count(size: int, kind: type[nn.Module] = layer) -> int:
        with torch.device("meta"):
            return parameter_count(kind(features, size))

    return bisect.bisect_right(range(1, hidden_size + 1), count(hidden_size, lltm.LLTM), key=count)


class Rollout(NamedTuple):
    """T steps of N environments, and the agent's state (1, N, H) before them. All others are (T, N)."""

    observations: Tensor  # (T, N, 2)
    begins: Tensor
    actions: Tensor
    log_probabilities: Tensor
    advantages: Tensor
    returns: Tensor
    h: Tensor
    c: Tensor

    def rows(self, index: Tensor) -> Rollout:
        """The rollout of some of the environments."""
        return Rollout(*(tensor[:, index] for tensor in self))


class Collector:
    """Runs an agent in its environments, rollout by rollout."""

    def __init__(self, agent: Agent, options: Options) -> None:
        self.agent, self.options = agent, options
        self.carts = CartPoles(options.carts, torch.Generator().manual_seed(options.seed))
        self.state = agent.initial_state(options.carts)
        self.begins = torch.ones(options.carts, dtype=torch.bool)
        self.lengths: deque[int] = deque(maxlen=LAST_EPISODES)

    @torch.no_grad()
    def collect(self) -> Rollout:
        options, initial = self.options, self.state
        observations, begins, actions, log_probabilities, values, rewards = ([] for _ in range(6))
        for _ in range(options.steps):
            observation = self.carts.observe()
            logits, value, self.state = self.agent(observation[None], self.state, self.begins[None])
            policy = torch.distributions.Categorical(logits=logits[0], validate_args=False)
            action = policy.sample()
            step = self.carts.step(action)
            reward = torch.full((options.carts,), 1 - options.discount)  # values are then between 0 and 1
            if step.cut.any():  # the pole would have stood longer: what it would have earned is estimated
                never = torch.zeros_like(self.begins)
                _, future, _ = self.agent(step.last[None], self.state, never[None])
                reward += options.discount * future[0] * step.cut
            for items, item in zip(
                (observations, begins, actions, log_probabilities, values, rewards),
                (observation, self.begins, action, policy.log_prob(action), value[0], reward),
                strict=True,
            ):
                items.append(item)
            self.lengths += step.length[step.begins].tolist()
            self.begins = step.begins
        _, next_value, _ = self.agent(self.carts.observe()[None], self.state, self.begins[None])
        values = torch.stack([*values, next_value[0]])
        episode_ends = torch.stack([*begins[1:], self.begins])
        advantages = estimate_advantages(torch.stack(rewards), values, episode_ends, options)
        return Rollout(
            torch.stack(observations),
            torch.stack(begins),
            torch.stack(actions),
            torch.stack(log_probabilities),
            advantages,
            advantages + values[:-1],
            *initial,
        )


def estimate_advantages(rewards: Tensor, values: Tensor, ends: Tensor, options: Options) -> Tensor:
    """Generalized advantage estimates (T, N), of rewards (T, N), values (T+1, N), and where episodes end (T, N)."""
    goes_on = (~ends).float() * options.discount
    errors = rewards + goes_on * values[1:] - values[:-1]
    advantages, advantage = [], torch.zeros_like(rewards[0])
    for error, factor in zip(errors.flip(0), (goes_on * options.smoothing).flip(0), strict=True):
        advantage = error + factor * advantage
        advantages.append(advantage)
    return torch.stack(advantages[::-1])


def loss_of(agent: Agent, rollout: Rollout, options: Options) -> Tensor:
    """The clipped loss of PPO, over whole rows of a rollout."""
    logits, values, _ = agent(rollout.observations, (rollout.h, rollout.c), rollout.begins)
    log_probabilities = logits.log_softmax(-1)
    taken = log_probabilities.gather(-1, rollout.actions.unsqueeze(-1)).squeeze(-1)
    ratio = (taken - rollout.log_probabilities).exp()
    advantages = (rollout.advantages - rollout.advantages.mean()) / (rollout.advantages.std() + 1e-8)
    bounded = ratio.clamp(1 - options.clip, 1 + options.clip)
    policy_loss = -torch.minimum(ratio * advantages, bounded * advantages).mean()
    value_loss = nn.functional.mse_loss(values, rollout.returns)
    entropy = -(log_probabilities.exp() * log_probabilities).sum(-1).mean()
    return policy_loss + 0.5 * value_loss - options.entropy * entropy


def train(agent: Agent, options: Options) -> Iterator[Report]:
    """Trains the agent in place, and reports after every rollout."""
    torch.manual_seed(options.seed)
    optimizer = torch.optim.Adam(agent.parameters(), lr=options.rate, eps=1e-5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=options.updates)
    collector = Collector(agent, options)
    collecting = learning = 0.0
    for update in range(1, options.updates + 1):
        start = time.process_time()
        rollout = collector.collect()
        collected = time.process_time()
        for _ in range(options.epochs):
            for index in torch.randperm(options.carts).chunk(options.batches):
                loss = loss_of(agent, rollout.rows(index), options)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), options.max_gradient)
                optimizer.step()
        schedule.step()
        collecting += collected - start
        learning += time.process_time() - collected
        lengths = collector.lengths
        mean = sum(lengths) / len(lengths) if lengths else float("nan")
        yield Report(update * options.steps * options.carts, mean, collecting, learning)
