"""Trains recurrent agents with PPO, with lltm.LLTM, lltm.LSTM and nn.LSTM, and draws how they learn.

    python examples/rl/demo.py --output build/rl

lltm, torch and matplotlib must be importable: `make rl` takes care of that. The runs are shared out among processes of
one thread each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import picture
import ppo
import torch
from cartpole import FEATURES
from torch import nn

import lltm

LAYERS = {"lltm.LLTM": lltm.LLTM, "lltm.LSTM": lltm.LSTM, "nn.LSTM": nn.LSTM, "lltm.GRU": lltm.GRU}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("build/rl"), help="the folder of the picture")
    parser.add_argument("--updates", type=int, default=ppo.Options().updates, help="the number of rollouts")
    parser.add_argument("--seeds", type=int, default=2, help="the number of runs of each agent")
    parser.add_argument("--hidden-size", type=int, default=64, help="of the LLTM; the others have as many parameters")
    parser.add_argument("--gru", action="store_true", help="also train an agent with lltm.GRU")
    args = parser.parse_args()
    if min(args.updates, args.seeds, args.hidden_size) < 1:
        parser.error("--updates, --seeds and --hidden-size must be 1 or more")
    return args


def make_agent(name: str, hidden_size: int, seed: int) -> ppo.Agent:
    torch.manual_seed(seed)
    return ppo.Agent(LAYERS[name](FEATURES, hidden_size))


def run(name: str, hidden_size: int, options: ppo.Options) -> list[ppo.Report]:
    torch.set_num_threads(1)  # the tensors are small
    return list(ppo.train(make_agent(name, hidden_size, options.seed), options))


def main() -> None:
    args = arguments()
    start = time.monotonic()
    args.output.mkdir(parents=True, exist_ok=True)
    sizes = {name: ppo.twin_size(layer, FEATURES, args.hidden_size) for name, layer in LAYERS.items()}
    if not args.gru:
        del sizes["lltm.GRU"]
    print(f"-- Training {len(sizes)} agents with {args.seeds} seeds each (PyTorch {torch.__version__})", flush=True)
    # Not forked: OpenMP's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
        jobs = {
            name: [
                pool.submit(run, name, size, ppo.Options(updates=args.updates, seed=seed)) for seed in range(args.seeds)
            ]
            for name, size in sizes.items()
        }
        runs = {name: [job.result() for job in agent_runs] for name, agent_runs in jobs.items()}

    print(
        f"\n{'':10}{'episode length':>16}{'rollouts':>12}{'updates':>12}   (seconds of processor time; a line per seed)"
    )
    for name, agent_runs in runs.items():
        for reports in agent_runs:
            last = reports[-1]
            print(f"{name:10}{last.length:16.0f}{last.collecting:12.1f}{last.learning:12.1f}")
    picture_file = args.output / "rl.png"
    parameters = {name: ppo.parameter_count(make_agent(name, size, 0).layer) for name, size in sizes.items()}
    picture.draw(picture_file, runs, parameters)
    ratios = " and ".join(
        f"{ratio:.1f} times as long as {name}" for name, ratio in picture.learning_speedups(runs).items()
    )
    print(f"\nupdates: nn.LSTM takes {ratios}")
    print(f"picture: {os.path.relpath(picture_file)} ({time.monotonic() - start:.0f} s in all)")


if __name__ == "__main__":
    main()
