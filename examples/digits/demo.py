"""Trains a classifier of handwritten digits in Python, serves it from C++, and checks that both predict the same.

    python examples/digits/demo.py --build-dir build

The library must have been built in that folder, and lltm, torch, scikit-learn, matplotlib and tqdm must be importable:
`make demo` takes care of all that. All output is written to <build dir>/digits.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import digits
import picture
import torch
from tqdm import tqdm

import lltm

SOURCE = Path(__file__).resolve().parent
ACCURACY_WANTED = 0.96


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-dir", type=Path, default=Path("build"), help="where the library was built")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and the order of the images")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: cuda if the library and the machine have it"
    )
    args = parser.parse_args()
    if args.epochs < 1:
        parser.error("--epochs must be 1 or more")
    if not (args.build_dir / "cmake_install.cmake").is_file():
        parser.error(f"--build-dir: the library was not built in {args.build_dir}")
    return args


def say(step: str) -> None:
    print(f"\n-- {step}", flush=True)


def run(*command: str | Path, quiet: bool = False) -> None:
    """Runs a command. With quiet, its output is shown only if it fails."""
    line = [str(word) for word in command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if quiet else {}
    done = subprocess.run(line, text=True, **pipes)
    if done.returncode:
        sys.exit(f"{done.stdout or ''}\n{' '.join(line)}\nended with status {done.returncode}")


def train(device: torch.device, epochs: int, training: digits.Examples, held_out: digits.Examples):
    # The tensors are small: threads would mostly wait for each other, and for a long time on a busy machine.
    torch.set_num_threads(1)
    model = digits.DigitReader().to(device)
    history = []
    # In a log, one line every few seconds is enough.
    pause = 0.1 if sys.stderr.isatty() else 5.0
    with tqdm(total=epochs, unit="epoch", mininterval=pause, desc="training") as bar:
        for epoch in digits.train(model, training.to(device), held_out.to(device), epochs):
            history.append(epoch)
            bar.set_postfix_str(f"loss {epoch.loss:.4f}, held-out accuracy {epoch.accuracy:.2%}", refresh=False)
            bar.update()
    return model.eval(), history


def build_program(build_dir: Path, output: Path) -> Path:
    """Installs the library and builds classify.cpp against it, as any other project would."""
    prefix, tree = output / "prefix", output / "classify"
    run("cmake", "--install", build_dir, "--prefix", prefix, quiet=True)
    generator = ("-G", "Ninja") if shutil.which("ninja") and not (tree / "CMakeCache.txt").exists() else ()
    run("cmake", "-S", SOURCE, "-B", tree, *generator, f"-DCMAKE_PREFIX_PATH={prefix}", quiet=True)
    run("cmake", "--build", tree)
    return tree / "classify"


def main() -> None:
    args = arguments()
    start = time.monotonic()
    output = args.build_dir.resolve() / "digits"
    output.mkdir(parents=True, exist_ok=True)
    device = torch.device(args.device or ("cuda" if lltm.has_cuda and torch.cuda.is_available() else "cpu"))

    training, held_out = digits.load()
    sizes = f"{len(training.labels)} images, {len(held_out.labels)} are held out"
    say(f"Training on {sizes} (PyTorch {torch.__version__}, {device})")
    torch.manual_seed(args.seed)
    model, history = train(device, args.epochs, training, held_out)

    model_file, images_file, predictions_file = output / "model.pt", output / "images.pt", output / "predictions.pt"
    torch.jit.script(model).save(model_file)
    torch.save(held_out._asdict(), images_file)
    say(f"Scripted and saved: {os.path.relpath(model_file)} ({model_file.stat().st_size / 1024:.0f} KiB)")

    say("Building examples/digits/classify.cpp against the installed library")
    program = build_program(args.build_dir, output)

    say("Serving from C++")
    run(program, model_file, images_file, predictions_file, device)

    predicted = digits.predict(model, held_out.images.to(device)).cpu()
    at_once, one_by_one = torch.load(predictions_file)
    for name, other in (("at once", at_once), ("one by one", one_by_one)):
        differ = torch.nonzero(predicted != other).flatten().tolist()
        if differ:
            sys.exit(f"C++, given the images {name}, sees other digits than Python in {len(differ)} images: {differ}")

    count = len(predicted)
    in_python, in_cpp = (digits.accuracy(seen, held_out.labels) for seen in (predicted, at_once))
    picture_file = output / "digits.png"
    size = f"{model.cell.state_size} numbers of state, 8 steps of one row of 8 pixels"
    picture.draw(picture_file, history, held_out, predicted, f"{size}, {in_python:.1%} of {count} images read right")

    print(f"\naccuracy: {in_python:.2%} in Python, {in_cpp:.2%} in C++, the same digits in all {count} images")
    print(
        "shown: a cell trained in Python, scripted, and served by a C++ program that knows only the installed package"
    )
    print(f"picture: {os.path.relpath(picture_file)} ({time.monotonic() - start:.0f} s in all)")
    if in_python < ACCURACY_WANTED:
        sys.exit(f"the accuracy is below the {ACCURACY_WANTED:.0%} that this model reaches when all is well")


if __name__ == "__main__":
    main()
