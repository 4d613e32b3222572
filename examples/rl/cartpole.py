"""The environment: carts that balance a pole, side by side, of which only the positions are seen.

The model is that of Barto, Sutton and Anderson (1983): a pole on a cart, which is pushed to the left or to the right in
every step. An episode ends when the cart leaves its track or the pole leans too far, or is cut off after ``LIMIT``
steps. Without the velocities, a single observation does not say where the pole is going: the policy needs a memory.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

LIMIT = 200
"""The number of steps after which an episode is cut off."""

ACTIONS = 2
FEATURES = 2

TRACK = 2.4  # m, in both directions
ANGLE = math.radians(12)
GRAVITY, CART, POLE, HALF_LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02


class Step(NamedTuple):
    """What happened in one step of N carts. The reward is 1 in every step."""

    observation: Tensor
    """(N, 2): position and angle, from -1 to 1. If an episode is over, it is that of the next one."""
    begins: Tensor
    """(N), bool: whether the observation is the first one of an episode."""
    cut: Tensor
    """(N), bool: whether the previous episode was cut off, although the pole stood."""
    last: Tensor
    """(N, 2): the observation with which the step ended, also if the episode is over."""
    length: Tensor
    """(N), int64: the number of steps in the episode so far, including this one."""


class CartPoles:
    """N carts. Each starts a new episode when its pole has fallen."""

    def __init__(self, carts: int, generator: torch.Generator) -> None:
        self._generator = generator
        self._state = self._draw(carts)
        self._length = torch.zeros(carts, dtype=torch.int64)

    def _draw(self, carts: int) -> Tensor:
        """Initial states (4, N): position, velocity, angle, angular velocity."""
        return torch.rand(4, carts, generator=self._generator) * 0.1 - 0.05

    def _observe(self, state: Tensor) -> Tensor:
        return torch.stack([state[0] / TRACK, state[2] / ANGLE], dim=1)

    def observe(self) -> Tensor:
        """The current observation (N, 2)."""
        return self._observe(self._state)

    def step(self, action: Tensor) -> Step:
        """Push each cart to the left (0) or to the right (1): (N), int64."""
        position, velocity, angle, spin = self._state
        sine, cosine = angle.sin(), angle.cos()
        mass = CART + POLE
        push = (FORCE * (2 * action - 1) + POLE * HALF_LENGTH * spin.square() * sine) / mass
        turn = (GRAVITY * sine - cosine * push) / (HALF_LENGTH * (4 / 3 - POLE * cosine.square() / mass))
        acceleration = push - POLE * HALF_LENGTH * turn * cosine / mass
        rates = torch.stack([velocity, acceleration, spin, turn])
        state = self._state + SECONDS * rates
        length = self._length + 1

        fallen = (state[0].abs() > TRACK) | (state[2].abs() > ANGLE)
        cut = ~fallen & (length >= LIMIT)
        begins = fallen | cut
        self._state = torch.where(begins, self._draw(len(begins)), state)
        self._length = torch.where(begins, 0, length)
        return Step(self.observe(), begins, cut, self._observe(state), length)
