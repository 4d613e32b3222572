"""The latency of a served model: that of examples/digits, in each of the three ways to serve it from C++.

    python benchmark/serving/run.py --build-dir build
    python benchmark/serving/run.py --publish build/serving/serving.json --machine xeon

The library must have been built in that folder (`make build`), and the environment is that of `make demo`. The model is
not trained, because its latency does not depend on the weights. The last form of the command keeps a file of results,
and writes the table of docs/serving.md from it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "benchmark"), str(ROOT / "examples" / "digits")]

import digits  # noqa: E402
import latency  # noqa: E402
import pages  # noqa: E402
import programs  # noqa: E402
from export import FILES, PackageUnavailable, export  # noqa: E402

PAGE = ROOT / "docs" / "serving.md"


def measure(
    program: Path,
    device: torch.device,
    images: Path,
    models: Mapping[str, Path],
    missing: Mapping[str, str],
    seconds: float,
) -> dict:
    """Measures the models, of which each way has one, and describes the machine.

    missing has the ways that cannot be measured, with the reasons. Each case is measured for some seconds: two numbers
    of images per call, and one to three loads for each way.
    """
    output = programs.run(program, device, images, seconds, *chain.from_iterable(models.items()), quiet=True)
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": torch.cuda.get_device_name() if device.type == "cuda" else None,
        "torch": torch.__version__,
        "missing": dict(missing),
        "rows": [json.loads(line) for line in output.splitlines()],
    }


def _cpu_name() -> str:
    with open("/proc/cpuinfo") as lines:
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    # aarch64 has no such line.
    return f"{names[0] if names else platform.machine()} ({torch.backends.cpu.get_cpu_capability()})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-dir", type=Path, default=Path("build"), help="where the library was built")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each latency is measured")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--publish", type=Path, metavar="FILE", help=f"keep it, write the table of {PAGE.name}, stop")
    parser.add_argument("--machine", help="the folder of benchmark/results that keeps it")
    args = parser.parse_args()
    if args.publish:
        shutil.copy(args.publish, pages.RESULTS / args.machine / "serving.json")
        PAGE.write_text(pages.written(PAGE.read_text()))
        return
    output = args.build_dir.resolve() / "serving"
    output.mkdir(parents=True, exist_ok=True)
    device = torch.device(args.device)
    torch.set_num_threads(1)  # the tensors are small
    _, held_out = digits.load()
    model, images = digits.DigitReader().to(device).eval(), held_out.images.to(device)
    torch.save(held_out._asdict(), output / "images.pt")
    models, missing = {}, {}
    for way, name in FILES.items():
        try:
            export(model, images, way, output / name)
            models[way] = output / name
        except PackageUnavailable as error:
            missing[way] = f"This environment cannot compile one: {str(error).splitlines()[0]}"
    built = programs.build(args.build_dir, output, Path(__file__).parent)
    results = measure(built / "latency", device, output / "images.pt", models, missing, args.seconds)
    results_file = output / "serving.json"
    results_file.write_text(json.dumps(results, indent=1) + "\n")
    print(f"{latency.table(results)}\n\nresults: {os.path.relpath(results_file)}")


if __name__ == "__main__":
    main()
