"""Trains a classifier of handwritten digits in Python, serves it from C++ in three ways, and checks that all predict
the same digits.

    python examples/digits/demo.py --build-dir build

The library must have been built in that folder, and lltm, torch, scikit-learn, matplotlib and tqdm must be importable:
`make demo` takes care of all that. All output is written to <build dir>/digits.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import digits
import picture
import programs
import torch
from export import FILES, WAYS, PackageUnavailable, export
from torch import Tensor, nn
from tqdm import tqdm

import lltm

ACCURACY_WANTED = 0.98


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-dir", type=Path, default=Path("build"), help="where the library was built")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and the order of the images")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--gru", action="store_true", help="read with an lltm.GRU instead of an lltm.LSTM")
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


def train(model: digits.DigitReader, epochs: int, training: digits.Examples, held_out: digits.Examples):
    # The tensors are small: threads would mostly wait for each other, and for a long time on a busy machine.
    torch.set_num_threads(1)
    device, history = model.readout.weight.device, []
    # In a log, one line every few seconds is enough.
    pause = 0.1 if sys.stderr.isatty() else 5.0
    with tqdm(total=epochs, unit="epoch", mininterval=pause, desc="training") as bar:
        for epoch in digits.train(model, training.to(device), held_out.to(device), epochs):
            history.append(epoch)
            bar.set_postfix_str(f"loss {epoch.loss:.4f}, held-out accuracy {epoch.accuracy:.2%}", refresh=False)
            bar.update()
    return model.eval(), history


def export_all(model: nn.Module, images: Tensor, output: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """Exports the model for every way to serve it. Returns the files, and why others are missing."""
    models, missing = {}, {}
    for way, name in FILES.items():
        try:
            export(model, images, way, output / name)
        except PackageUnavailable as error:
            print(f"{WAYS[way]}: {error}")
            missing[way] = f"This environment cannot compile one: {str(error).splitlines()[0]}"
        else:
            models[way] = output / name
            print(f"{WAYS[way]}: {name} ({models[way].stat().st_size / 1024:.0f} KiB)")
    return models, missing


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
    model = digits.DigitReader(layer=lltm.GRU if args.gru else lltm.LSTM).to(device)
    model, history = train(model, args.epochs, training, held_out)
    images = held_out.images.to(device)
    with torch.inference_mode():
        logits = model(images).cpu()

    images_file = output / "images.pt"
    torch.save(held_out._asdict(), images_file)
    say(f"Exporting to {os.path.relpath(output)}")
    models, missing = export_all(model, images, output)

    say("Building the programs of examples/digits against the installed library")
    built = programs.build(args.build_dir, output)

    say("Serving from C++")
    for way, file in models.items():
        programs.compare(way, programs.classify(built, way, file, images_file, device), logits)
    predicted = logits.argmax(dim=1)
    count, accuracy = len(predicted), digits.accuracy(predicted, held_out.labels)
    print(f"the same digits as in Python in all {count} images, and logits within {programs.TOLERANCE:.0e}")

    picture_file = output / "digits.png"
    size = f"Hidden size {model.rnn.hidden_size}, 8 steps of one row of 8 pixels"
    picture.draw(picture_file, history, held_out, predicted, f"{size}. Test accuracy {accuracy:.1%} of {count} images")
    served = ", ".join(WAYS[way] for way in models)
    print(f"\naccuracy: {accuracy:.2%}, in Python and in C++")
    print(f"shown: a model trained in Python, and served by C++ programs without Python: {served}")
    for way, reason in missing.items():
        print(f"not shown: {WAYS[way]}. {reason}")
    print(f"picture: {os.path.relpath(picture_file)} ({time.monotonic() - start:.0f} s in all)")
    if accuracy < ACCURACY_WANTED:
        sys.exit(f"the accuracy is below the {ACCURACY_WANTED:.0%} that this model reaches when all is well")


if __name__ == "__main__":
    main()
