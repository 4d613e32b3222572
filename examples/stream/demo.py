"""Trains a byte-level model on the source of Python's standard library, exports it, and completes lines in C++.

    python examples/stream/demo.py --build-dir build --line "    def read(self, "
    torchrun --nproc-per-node 2 examples/stream/demo.py --build-dir build

The library must have been built in that folder, and lltm, torch and matplotlib must be importable: `make stream` takes
care of all that. All output is written to <build dir>/stream.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import corpus
import picture
import stream
import torch
import torch.distributed as dist

# DistributedDataParallel imports this module, whose default arguments are the process group of that moment. They must
# not keep the group alive: its threads would run while the interpreter finalizes, and could abort the process.
import torch.distributed.nn

import lltm

SOURCE = Path(__file__).resolve().parent
DEFAULTS = stream.Options()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-dir", type=Path, default=Path("build"), help="where the library was built")
    parser.add_argument("--line", help="the beginning of a line to complete; by default several")
    parser.add_argument("--count", type=int, default=72, help="the most bytes to add to a line")
    parser.add_argument(
        "--temperature", type=float, default=0.2, help="0 takes the likeliest byte, 1 samples from the model"
    )
    parser.add_argument("--steps", type=int, default=DEFAULTS.steps, help="of training, for each of the models")
    parser.add_argument("--hidden-size", type=int, default=160)
    parser.add_argument("--seed", type=int, default=DEFAULTS.seed, help="of weights, order of files and what is drawn")
    parser.add_argument("--train-only", action="store_true", help="save the trained models and stop")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: cuda if the library and the machine have it"
    )
    args = parser.parse_args()
    # Here, because most of them would only be noticed after minutes of training.
    if args.steps < 1 or args.hidden_size < 1:
        parser.error("--steps and --hidden-size must be 1 or more")
    if args.count < 0 or not args.temperature >= 0:
        parser.error("--count and --temperature must be 0 or more")
    if not args.train_only and not (args.build_dir / "cmake_install.cmake").is_file():
        parser.error(f"--build-dir: the library was not built in {args.build_dir}")
    return args


def say(step: str) -> None:
    print(f"\n-- {step}", flush=True)


def run(*command: str | Path, **options) -> subprocess.CompletedProcess:
    """Runs a command that must succeed. If it fails, its output is shown."""
    line = [str(word) for word in command]
    done = subprocess.run(line, capture_output=True, **options)
    if done.returncode:
        output = (done.stdout + done.stderr).decode(errors="replace")
        sys.exit(f"{output}\n{' '.join(line)}\nended with status {done.returncode}")
    return done


@contextmanager
def process_group(kind: str) -> Iterator[tuple[int, torch.device]]:
    """This process's rank and device, within a process group if torchrun started several processes."""
    if "RANK" not in os.environ:
        yield 0, torch.device(kind)
        return
    device = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    try:
        yield dist.get_rank(), device
    finally:
        dist.destroy_process_group()


def train(args: argparse.Namespace, rank: int, device: torch.device) -> dict[str, tuple[stream.ByteModel, list]]:
    """Trains all models. Returns them with the reports of their training."""
    training_files, held_out_files = corpus.source_files()
    training, held_out = corpus.read(training_files, args.seed), corpus.read(held_out_files)
    options = DEFAULTS._replace(steps=args.steps, seed=args.seed)
    if rank == 0:
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        say(
            f"Training on {len(training.bytes) / 1e6:.1f} MB of {training.files} files, {held_out.files} are held out "
            f"(PyTorch {torch.__version__}, {ranks} x {device.type})"
        )
    results = {}
    for name, model in stream.twin_models(args.hidden_size, args.seed).items():
        reports = []
        for report in stream.train(model.to(device), training, held_out, options):
            reports.append(report)
            print(
                f"   {name} step {report.step:4d}: {report.loss:.2f} bits per byte, held out {report.held_out:.2f}, "
                f"{report.step * options.rows * options.chunk / report.seconds / 1e3:.1f} kB/s",
                flush=True,
            )
        results[name] = model.eval(), reports
    return results


class OneByte(torch.nn.Module):
    """The exported module: takes a byte of a single stream and the state, returns the next logits and the new state."""

    def __init__(self, model: stream.ByteModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, byte: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits, (h, c) = self.model(byte.reshape(1, 1), (h, c))
        return logits.flatten(), h, c


def export(model: stream.ByteModel, path: Path) -> None:
    """Compiles the model ahead of time into a package that a C++ program can load."""
    device = next(model.parameters()).device
    state = torch.zeros(1, 1, model.layer.hidden_size, device=device)
    byte = torch.zeros(1, dtype=torch.int64, device=device)
    with torch.no_grad():
        program = torch.export.export(OneByte(model), (byte, state, state.clone()))
        metadata = {"aot_inductor.metadata": {"hidden_size": str(model.layer.hidden_size)}}
        torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=metadata)


def build_program(build_dir: Path, output: Path) -> Path:
    """Installs the library and builds write.cpp against it, as any other project would."""
    prefix, tree = output / "prefix", output / "write"
    run("cmake", "--install", build_dir, "--prefix", prefix)
    generator = ("-G", "Ninja") if shutil.which("ninja") and not (tree / "CMakeCache.txt").exists() else ()
    run("cmake", "-S", SOURCE, "-B", tree, *generator, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tree)
    return tree / "write"


def compare(program: Path, package: Path, device: torch.device, model: stream.ByteModel, lines: Sequence[str]) -> None:
    """Checks that C++ and Python complete the lines alike when nothing is sampled."""
    count = 72
    done = run(program, package, count, 0, 0, device, *lines)
    expected = b"".join(line.encode() + stream.write(model, line.encode(), count) + b"\n" for line in lines)
    if done.stdout != expected:
        sys.exit(f"C++ and Python complete the lines differently:\n{done.stdout!r}\n{expected!r}")
    print(expected.decode(errors="replace"), end="")


def main() -> None:
    args = arguments()
    start = time.monotonic()
    output = args.build_dir.resolve() / "stream"
    output.mkdir(parents=True, exist_ok=True)
    # The tensors are small: threads would mostly wait for each other, and for a long time on a busy machine.
    torch.set_num_threads(1)
    kind = args.device or ("cuda" if lltm.has_cuda and torch.cuda.is_available() else "cpu")
    with process_group(kind) as (rank, device):
        results = train(args, rank, device)
    if rank != 0:
        return
    for name, (model, _) in results.items():
        torch.save(model.state_dict(), output / f"{name}.pt")
    if args.train_only:
        return
    model, _ = results["lltm.LLTM"]

    package = output / "model.pt2"
    say(
        f"Exporting to {os.path.relpath(package)}, and building examples/stream/write.cpp against the installed library"
    )
    export(model, package)
    program = build_program(args.build_dir, output)
    lines = stream.BEGINNINGS if args.line is None else [args.line]
    say("Completed by the likeliest bytes, the same in C++ and in Python")
    compare(program, package, device, model, lines)

    say(f"Completed in C++, sampled at temperature {args.temperature}")
    command = [program, package, args.count, args.temperature, args.seed, device, *lines]
    if subprocess.run([str(word) for word in command]).returncode:
        sys.exit("the program failed")

    theirs, (*_, last) = results["nn.LSTM"]
    say("Converting the trained nn.LSTM to lltm.LSTM")
    converted = stream.evaluate(lltm.convert_lstm(theirs), corpus.read(corpus.source_files()[1]))
    print(f"bits per byte on held-out files: {last.held_out:.4f} before, {converted:.4f} after")

    picture_file = output / "stream.png"
    curves = {name: reports for name, (_, reports) in results.items()}
    sizes = {name: stream.parameter_count(model) for name, (model, _) in results.items()}
    picture.draw(picture_file, curves, sizes, DEFAULTS.rows * DEFAULTS.chunk)
    for name, (_, (*_, last)) in results.items():
        print(f"{name}: {last.held_out:.2f} bits per byte on held-out files, {last.seconds:.0f} s of processor time")
    print(f"picture: {os.path.relpath(picture_file)} ({time.monotonic() - start:.0f} s in all)")


if __name__ == "__main__":
    main()
