"""The tasks: what a model reads, what it has to answer, and its score after a short training."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import cartpole
import corpus
import ppo
import torch
from models import Model, Variant, make_layer, make_readout
from torch import Tensor, nn

import lltm


class Outcome(NamedTuple):
    """The score of a trained model, and the size of its cells' states after the last step of the evaluation."""

    score: float
    cell_mean: float | None
    """The mean of |c|; None for a layer without c."""
    cell_max: float | None


class Task(NamedTuple):
    name: str
    metric: str
    lower_is_better: bool
    run: Callable[[Variant, int, float], Outcome]
    """Trains a model with a seed, for a part of the task's updates, and evaluates it."""


def outcome(score: float, model: nn.Module, state: ppo.State) -> Outcome:
    if isinstance(model.layer, (nn.GRU, lltm.GRU)):  # has no c
        return Outcome(score, None, None)
    sizes = state[1].abs()
    return Outcome(score, sizes.mean().item(), sizes.max().item())


class Trainer:
    """Adam with a rate that rises and falls (one cycle), as the variant says."""

    def __init__(self, model: nn.Module, variant: Variant, rate: float, updates: int) -> None:
        self._parameters, self._clip = list(model.parameters()), variant.clip
        self._optimizer = torch.optim.Adam(self._parameters, lr=rate * variant.rate, fused=True)
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(self._optimizer, rate * variant.rate, total_steps=updates)

    def update(self, loss: Tensor) -> None:
        self._optimizer.zero_grad()
        loss.backward()
        if self._clip is not None:
            nn.utils.clip_grad_norm_(self._parameters, self._clip)
        self._optimizer.step()
        self._schedule.step()


class Examples(NamedTuple):
    """An input (T, N, I), time first, and the target."""

    input: Tensor
    target: Tensor


class Sequences(NamedTuple):
    """A task of independent sequences, each from a state of zeros."""

    draw: Callable[[int], Examples]
    """Draws this number of sequences."""
    held_out: Callable[[], Examples]
    loss: Callable[[Tensor, Tensor], Tensor]
    """Of the outputs (T, N, O) and the target."""
    score: Callable[[Tensor, Tensor], Tensor]
    features: int
    outputs: int
    updates: int
    hidden_size: int = 48
    rate: float = 5e-3
    batch: int = 32

    def run(self, variant: Variant, seed: int, part: float = 1.0) -> Outcome:
        updates = max(1, round(part * self.updates))
        torch.manual_seed(seed)
        model = Model(variant, self.features, self.hidden_size, self.outputs)
        trainer = Trainer(model, variant, self.rate, updates)
        for _ in range(updates):
            input, target = self.draw(self.batch)
            trainer.update(self.loss(model(input)[0], target))
        input, target = self.held_out()
        with torch.inference_mode():
            output, state = model(input)
            return outcome(self.score(output, target).item(), model, state)


def drawn(draw: Callable[[int], Examples]) -> Callable[[], Examples]:
    """512 sequences that are the same for every model."""

    def held_out() -> Examples:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(12345)
            return draw(512)

    return held_out


def draw_sums(batch: int, steps: int) -> Examples:
    """The adding problem: the sum of the numbers of two marked steps."""
    numbers = torch.rand(steps, batch)
    marked = torch.rand(steps, batch).argsort(0)[:2]
    marks = torch.zeros(steps, batch).scatter_(0, marked, 1.0)
    return Examples(torch.stack([numbers, marks], 2), (numbers * marks).sum(0))


def last_error(output: Tensor, target: Tensor) -> Tensor:
    """The mean squared error of the last output."""
    return nn.functional.mse_loss(output[-1].squeeze(1), target)


def adding(steps: int) -> Sequences:
    draw = partial(draw_sums, steps=steps)
    return Sequences(draw, drawn(draw), last_error, last_error, features=2, outputs=1, updates=500)


SYMBOLS, COPIED = 8, 5


def draw_copies(batch: int, delay: int) -> Examples:
    """The copying problem: five symbols to be repeated after a delay, when a mark is read."""
    symbols = torch.randint(SYMBOLS, (COPIED, batch))
    blank, mark = SYMBOLS, SYMBOLS + 1
    read = torch.full((COPIED + delay + COPIED, batch), blank)
    read[:COPIED] = symbols
    read[-COPIED] = mark
    return Examples(nn.functional.one_hot(read, SYMBOLS + 2).float(), symbols)


def copying_loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output[-COPIED:].flatten(0, 1), target.flatten())


def copying(delay: int) -> Sequences:
    draw = partial(draw_copies, delay=delay)
    return Sequences(draw, drawn(draw), copying_loss, copying_loss, features=SYMBOLS + 2, outputs=SYMBOLS, updates=500)


def draw_sines(batch: int, steps: int = 50) -> Examples:
    """Sines of random frequency and phase, of which the next value is to be predicted."""
    frequency, phase = torch.rand(batch) * 0.4 + 0.1, torch.rand(batch) * 2 * math.pi
    values = (torch.arange(steps + 1).unsqueeze(1) * frequency + phase).sin().unsqueeze(2)
    return Examples(values[:-1], values[1:])


def sine() -> Sequences:
    loss = nn.functional.mse_loss
    return Sequences(draw_sines, drawn(draw_sines), loss, loss, features=1, outputs=1, updates=300)


@cache
def digits_by_rows() -> Sequences:
    """The images of examples/digits, a row of eight pixels per step."""
    import digits

    training, held_out = digits.load()

    def examples(images: Tensor, labels: Tensor) -> Examples:
        return Examples((images / 8 - 1).transpose(0, 1), labels)

    def draw(batch: int) -> Examples:
        index = torch.randint(len(training.labels), (batch,))
        return examples(training.images[index], training.labels[index])

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output[-1], target)

    def errors(output: Tensor, target: Tensor) -> Tensor:
        return 100 * (output[-1].argmax(1) != target).double().mean()

    return Sequences(
        draw, lambda: examples(*held_out), loss, errors,
        features=digits.ROW_PIXELS, outputs=digits.CLASSES, updates=300, rate=1e-2,
    )  # fmt: skip


def run_digits(variant: Variant, seed: int, part: float = 1.0) -> Outcome:
    return digits_by_rows().run(variant, seed, part)


@cache
def texts() -> tuple[corpus.Text, corpus.Text]:
    training, held_out = corpus.source_files()
    return corpus.read(training[:200], seed=0), corpus.read(held_out[:10])


def run_bytes(
    variant: Variant, seed: int, part: float = 1.0, *, resets: bool, updates: int = 300, hidden_size: int = 64
) -> Outcome:
    """The byte model of examples/stream: a stream of source code, in chunks of 64 steps that carry the state."""
    updates = max(1, round(part * updates))
    torch.manual_seed(seed)
    model = Model(variant, 32, hidden_size, outputs=256, symbols=256)
    trainer = Trainer(model, variant, 1e-2, updates)
    training, held_out = texts()

    def run(chunk: corpus.Chunk, state: ppo.State) -> tuple[Tensor, ppo.State]:
        begins = (chunk.bytes == corpus.BEGIN) | (chunk.bytes == ord("\n"))
        logits, state = model(chunk.bytes, state, begins if resets else None)
        bits = nn.functional.cross_entropy(logits.flatten(0, 1), chunk.next_bytes.flatten()) / math.log(2)
        return bits, state

    state = model.initial_state(8)
    for chunk, _ in zip(corpus.chunks(training, 8, 64), range(updates), strict=False):
        bits, state = run(chunk, (state[0].detach(), state[1].detach()))
        trainer.update(bits)
    with torch.inference_mode():
        scores, state = [], model.initial_state(16)
        for chunk, _ in zip(corpus.chunks(held_out, 16, 256), range(4), strict=False):
            bits, state = run(chunk, state)
            scores.append(bits.item())
    return outcome(sum(scores) / len(scores), model, state)


def run_cartpole(variant: Variant, seed: int, part: float = 1.0) -> Outcome:
    """The recurrent PPO of examples/rl: the mean length of the last episodes of the training."""
    torch.manual_seed(seed)
    agent = ppo.Agent(make_layer(variant, cartpole.FEATURES, 64))
    if variant.normalizes:
        agent.policy = make_readout(variant, agent.layer.hidden_size, cartpole.ACTIONS)
        agent.value = make_readout(variant, agent.layer.hidden_size, 1)
    options = ppo.Options(carts=8, batches=2, seed=seed)
    options = options._replace(
        updates=max(1, round(part * options.updates)),
        rate=options.rate * variant.rate,
        max_gradient=math.inf if variant.clip is None else options.max_gradient,
    )
    *_, last = ppo.train(agent, options)
    collector = ppo.Collector(agent, options)
    for _ in range(4):  # long enough for whole episodes
        collector.collect()
    return outcome(last.length, agent, collector.state)


TASKS = {
    task.name: task
    for task in (
        Task("digits by rows, 8 steps", "errors, %", True, run_digits),
        Task("sine, 50 steps", "squared error", True, sine().run),
        Task("copying, delay 10", "nats", True, copying(10).run),
        Task("adding, 20 steps", "squared error", True, adding(20).run),
        Task("bytes, a stream", "bits per byte", True, partial(run_bytes, resets=False)),
        Task("bytes, lines reset", "bits per byte", True, partial(run_bytes, resets=True)),
        Task("masked CartPole", "steps, at most 200", False, run_cartpole),
        Task("adding, 80 steps", "squared error", True, adding(80).run),
    )
}
