"""Times training steps of open-source projects with torch.nn's layers and with lltm's, and compares their outputs.

    pip install --no-deps $(python benchmark/projects/run.py --requirements)    # beside lltm, and what they import
    python benchmark/projects/run.py --output build/projects.json
    python benchmark/bench.py publish MACHINE build/projects.json

A model whose project is not installed in this version, or does not import, is left out, and named at the end. Each is
made twice after one seed, and one of the two converted. The two take turns; a time is the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[1]))

import machine

import lltm

STEPS, ROWS = 200, 16


class Program(NamedTuple):
    """A model of a project, and how a program calls it."""

    package: str
    version: str
    what: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple]
    call: Callable[[nn.Module, tuple], Tensor] = lambda model, inputs: model(*inputs)
    packed: bool = False
    cell: str = "LSTM"
    """Of the layers that it is made with."""


def openunmix() -> nn.Module:
    from openunmix.model import OpenUnmix

    return OpenUnmix(nb_bins=513, hidden_size=256, max_bin=400)


def demucs() -> nn.Module:
    from demucs.demucs import Demucs

    return Demucs(["voice", "rest"], channels=16, depth=4, lstm_layers=2)


def encodec() -> nn.Module:
    from encodec.modules.seanet import SEANetEncoder

    return SEANetEncoder(n_filters=8)


def espnet_encoder(cell: str) -> nn.Module:
    from espnet.nets.pytorch_backend.rnn.encoders import RNN

    return RNN(80, 3, 256, 256, 0.0, typ=f"b{cell.lower()}")


def espnet2_encoder(cell: str) -> nn.Module:
    from espnet2.asr.encoder.rnn_encoder import RNNEncoder

    return RNNEncoder(80, rnn_type=cell.lower(), num_layers=3, hidden_size=256, output_size=256, dropout=0.0)


def espnet2_language_model(cell: str) -> nn.Module:
    from espnet2.lm.seq_rnn_lm import SequentialRNNLM

    return SequentialRNNLM(500, unit=256, nlayers=2, rnn_type=cell.lower())


def piano_transcription() -> nn.Module:
    from piano_transcription_inference.models import AcousticModelCRnn8Dropout

    return AcousticModelCRnn8Dropout(classes_num=88, midfeat=1792, momentum=0.01)


def speechbrain(cell: str, bidirectional: bool) -> nn.Module:
    from speechbrain.nnet import RNN

    shape = {"input_shape": (ROWS, STEPS, 80), "hidden_size": 256, "num_layers": 2}
    return getattr(RNN, cell)(**shape, bidirectional=bidirectional)


def pykt() -> nn.Module:
    from pykt.models.dkt import DKT

    return DKT(num_c=100, emb_size=200)


def pykt_kqn() -> nn.Module:
    from pykt.models.kqn import KQN

    return KQN(100, 64, 128, 64, dropout=0.0, rnn_type="gru")


def attentive_fp() -> nn.Module:
    from torch_geometric.nn import AttentiveFP

    return AttentiveFP(39, 128, 1, edge_dim=10, num_layers=3, num_timesteps=3)


def molecules() -> tuple:
    """A batch of 64 graphs of 24 atoms, each with six bonds to others of its graph."""
    atoms = torch.arange(64 * 24)
    ends = atoms // 24 * 24 + torch.randint(24, (6, 64 * 24))
    bonds = torch.stack([ends.flatten(), atoms.repeat(6)])
    return torch.randn(len(atoms), 39), bonds, torch.randn(bonds.size(1), 10), atoms // 24


def wave_rnn() -> nn.Module:
    from torchaudio.models import WaveRNN

    return WaveRNN([5, 5, 8], 256, 200, n_res_block=2, n_rnn=256, n_fc=256, n_freq=80)


def tacotron2() -> nn.Module:
    from torchaudio.models import Tacotron2

    return Tacotron2(symbol_embedding_dim=128, encoder_embedding_dim=128, decoder_rnn_dim=256, attention_rnn_dim=256)


def lengths() -> Tensor:
    """Of the rows: from all steps to a quarter of them, as a batch of utterances."""
    return torch.linspace(STEPS, STEPS // 4, ROWS).long()


def frames() -> tuple:
    return torch.randn(ROWS, STEPS, 80), lengths()


def first(model: nn.Module, inputs: tuple) -> Tensor:
    return model(*inputs)[0]


def with_a_choice(cell: str) -> tuple[Program, ...]:
    """The models that are made with either cell."""
    rows = lambda: (torch.randn(ROWS, STEPS, 80),)  # noqa: E731
    return (
        Program("espnet", "202511", "encoders.RNN", lambda: espnet_encoder(cell), frames, first, True, cell),
        Program("espnet", "202511", "RNNEncoder", lambda: espnet2_encoder(cell), frames, first, True, cell),
        Program(
            "espnet", "202511", "SequentialRNNLM", lambda: espnet2_language_model(cell),
            lambda: (torch.randint(1, 500, (ROWS, 50)), None),
            first, cell=cell,
        ),
        Program("speechbrain", "1.1.2", cell, lambda: speechbrain(cell, False), rows, first, cell=cell),
        Program(
            "speechbrain", "1.1.2", f"{cell}(lengths)", lambda: speechbrain(cell, True), rows,
            lambda model, inputs: model(*inputs, lengths=lengths() / STEPS)[0], True, cell,
        ),
    )  # fmt: skip


PROGRAMS = (
    *with_a_choice("LSTM"),
    *with_a_choice("GRU"),
    Program("demucs", "4.1.0", "Demucs", demucs, lambda: (torch.randn(2, 2, 44100),)),
    Program("encodec", "0.1.1", "SEANetEncoder", encodec, lambda: (torch.randn(4, 1, 24000),)),
    Program("openunmix", "1.3.0", "OpenUnmix", openunmix, lambda: (torch.rand(4, 2, 513, 100),)),
    Program(
        "piano-transcription-inference", "0.0.6", "AcousticModelCRnn8Dropout", piano_transcription,
        lambda: (torch.randn(2, 1, 101, 229),),
        cell="GRU",
    ),
    Program(
        "pykt-toolkit", "0.0.38", "DKT", pykt,
        lambda: (torch.randint(0, 100, (64, 200)), torch.randint(0, 2, (64, 200))),
    ),
    Program(
        "pykt-toolkit", "0.0.38", "KQN", pykt_kqn,
        lambda: (*torch.randint(0, 2, (2, 64, 200)), torch.randint(0, 100, (64, 200))),
        cell="GRU",
    ),
    Program("torch-geometric", "2.8.1", "AttentiveFP", attentive_fp, molecules, cell="GRU"),
    Program(
        "torchaudio", "2.11.1", "Tacotron2", tacotron2,
        lambda: (torch.randint(0, 148, (4, 50)), torch.full((4,), 50), torch.randn(4, 80, 60), torch.full((4,), 60)),
        first,
    ),
    Program(
        "torchaudio", "2.11.1", "WaveRNN", wave_rnn,
        lambda: (torch.randn(2, 1, 3 * 200), torch.randn(2, 1, 80, 7)),
        cell="GRU",
    ),
)  # fmt: skip


def requirements() -> list[str]:
    return sorted({f"{program.package}=={program.version}" for program in PROGRAMS})


def seconds(step: Callable[[], object], device: str) -> float:
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    step()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - start


def to(value: object, device: str) -> object:
    return value.to(device) if isinstance(value, Tensor) else value


def measure(program: Program, device: str, rounds: int) -> dict:
    inputs = tuple(to(value, device) for value in program.inputs())
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(program.make().to(device))
    lltm.convert(models[1])
    layers = (lltm.LSTM, lltm.LSTMCell) if program.cell == "LSTM" else (lltm.GRU, lltm.GRUCell)
    if not any(isinstance(module, layers) for module in models[1].modules()):
        raise RuntimeError("nothing was converted")

    def evaluate(model: nn.Module) -> Tensor:
        torch.manual_seed(1)  # Tacotron2 also drops out in evaluation
        with torch.no_grad():
            return program.call(model.eval(), inputs)

    # Once before the training, of the same parameters, and without dropout.
    expected, actual = map(evaluate, models)
    difference = ((actual - expected).abs().max() / expected.abs().max()).item()
    optimizers = [torch.optim.Adam(model.parameters()) for model in models]

    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model.train()
        optimizer.zero_grad()
        program.call(model, inputs).square().mean().backward()
        optimizer.step()

    times: dict[str, list[list[float]]] = {"train": [[], []], "eval": [[], []]}
    for number in range(rounds + 1):  # the first does not count
        for index, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            found = {
                "train": seconds(lambda model=model, optimizer=optimizer: train(model, optimizer), device),
                "eval": seconds(lambda model=model: evaluate(model), device),
            }
            for work, value in found.items() if number else ():
                times[work][index].append(1e3 * value)
    facts = {name: getattr(program, name) for name in ("package", "version", "what", "packed", "cell")}
    return facts | {work: [median(of) for of in both] for work, both in times.items()} | {"difference": difference}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requirements", action="store_true", help="print what pip has to install, and end")
    parser.add_argument("--output", type=Path, default=Path("build/projects.json"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    if args.requirements:
        print(*requirements())
        return
    torch.set_num_threads(1)
    rows, missing = [], []
    for program in PROGRAMS:
        name = f"{program.package} {program.version}, {program.what}, {program.cell}"
        try:
            if (found := metadata.version(program.package)) != program.version:
                raise ImportError(f"{found} is installed")
            row = measure(program, args.device, args.rounds)
        except (ImportError, RuntimeError) as error:
            missing.append(f"{name}: {error}")
            continue
        rows.append(row)
        before, after = row["train"]
        print(f"{name}: {before:.1f} -> {after:.1f} ms, {before / after:.2f} times as fast", flush=True)
    results = {"machine": machine.describe([args.device]), "device": args.device, "missing": missing, "rows": rows}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(results, indent=1) + "\n")
    for reason in missing:
        print(f"left out: {reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
