"""Runs a command with everything that it needs, and first installs what is missing of that.

    python3 scripts/environment.py [--torch 2.11.0] GOAL COMMAND [ARGUMENT...]

GOAL names the list of needs, requirements/GOAL.txt. The Python that runs this script decides:

- Its torch is a supported one (with --torch: that very version). Then it is used, and what else is missing goes into
  an environment of ours that sees all of its packages. Where nothing is missing, there is no such environment.
- Otherwise everything goes into an environment of ours, torch too.

Environments of ours are .venv, .venv-torch-VERSION with --torch, and .venv-lint, all in the checkout. Nothing is ever
installed anywhere else. Needs Python's standard library alone.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
EXECUTABLES = ("cmake", "ninja", "clang-format", "ruff")  # needed as programs, wherever they come from
MARKER = "made-by-lltm.json"  # in an environment of ours; tells what it was made for, and what is in it


class Requirement(NamedTuple):
    """A line of a requirements file, such as ``torch>=2.11,<2.16``."""

    name: str
    bounds: str

    def __str__(self) -> str:
        return self.name + self.bounds

    def allows(self, version: str | None) -> bool:
        if version is None:
            return False
        number = parse_version(version)
        for clause in filter(None, self.bounds.split(",")):
            operator, bound = re.fullmatch(r"(>=|<|==)([\w.+]+)", clause).groups()
            limit = parse_version(bound)
            if operator == "==" and "+" in bound and version != bound:
                return False
            if not {">=": number >= limit, "<": number < limit, "==": number == limit}[operator]:
                return False
        return True


class Plan(NamedTuple):
    """What to run in, and what to install there."""

    folder: Path | None
    """The environment of ours, None where python3 has everything."""
    over_python: bool
    """Whether that environment sees the packages of python3."""
    install: list[Requirement]
    """What must be in that environment."""


def parse_version(text: str) -> tuple[int, ...]:
    """``2.11.0+cu130`` is (2, 11): what the bounds compare is the number, without zeros at its end."""
    numbers = [int(part) for part in re.match(r"\d+(\.\d+)*", text).group().split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def read_requirements(goal: str) -> dict[str, Requirement]:
    """The needs of a goal, by name: requirements/GOAL.txt and the files that it names with -r."""
    requirements = {}
    for line in (ROOT / "requirements" / f"{goal}.txt").read_text().splitlines():
        line = line.split("#")[0].strip()
        if line.startswith("-r "):
            requirements.update(read_requirements(Path(line[3:]).stem))
        elif line:
            name, bounds = re.fullmatch(r"([\w-]+)(.*)", line).groups()
            requirements[name] = Requirement(name, bounds)
    return requirements


def find_version(name: str) -> str | None:
    """The version of what python3 has, of a program what PATH has; None where there is none."""
    if name in EXECUTABLES:
        program = shutil.which(name)
        return read_program_version(program) if program else None
    if name == "torch":
        # Not imported, which would take seconds; not by its metadata, which a build from source may lack.
        spec = importlib.util.find_spec("torch")
        file = Path(spec.origin).parent / "version.py" if spec and spec.origin else None
        found = re.search(r"__version__ = ['\"](.+?)['\"]", file.read_text()) if file and file.is_file() else None
        return found.group(1) if found else None
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def read_program_version(program: str) -> str | None:
    """None where it does not run, as a shim of pyenv whose program is in another Python."""
    output = subprocess.run([program, "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    found = re.search(r"\d+(\.\d+)+", output)
    return found.group() if found else None


def make_plan(goal: str, torch: str | None, find=find_version) -> Plan:
    """Decides for a goal; ``torch`` is the version asked for. Exits where that is not a supported one."""
    requirements = read_requirements(goal)
    if "torch" not in requirements:
        install = [
            requirement for requirement in requirements.values() if not requirement.allows(find(requirement.name))
        ]
        return Plan(ROOT / f".venv-{goal}" if install else None, False, install)

    supported = requirements["torch"]
    if torch:
        if not re.fullmatch(r"\d+(\.\d+)+(\+\w+)?", torch) or not supported.allows(torch):
            fail(f"TORCH={torch} is not supported: lltm works with PyTorch {describe_bounds(supported)}.")
        requirements["torch"] = Requirement("torch", f"=={torch}")
    over_python = requirements["torch"].allows(find("torch"))
    install = [
        requirement
        for requirement in requirements.values()
        if not over_python or not requirement.allows(find(requirement.name))
    ]
    folder = ROOT / (f".venv-torch-{torch}" if torch else ".venv")
    return Plan(folder if install else None, over_python, install)


def describe_bounds(torch: Requirement) -> str:
    """``>=2.11,<2.16`` in words: 2.11 to 2.15."""
    oldest, above_newest = re.fullmatch(r">=([\d.]+),<([\d.]+)", torch.bounds).groups()
    major, minor = above_newest.split(".")
    return f"{oldest} to {major}.{int(minor) - 1}"


def package_folders() -> list[str]:
    """The folders with packages that this Python sees, those of the user first, as it looks them up."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [folder for folder in user + site.getsitepackages() if Path(folder).is_dir()]


def prepare(plan: Plan) -> None:
    """Makes the environment of the plan, or what it lacks of it."""
    folder = plan.folder
    marker = folder / MARKER
    python = f"Python {sys.version_info.major}.{sys.version_info.minor} in {sys.base_prefix}"
    made_for = {"python": python, "packages": package_folders() if plan.over_python else []}
    running_in_it = Path(sys.prefix) == folder
    state = json.loads(marker.read_text()) if marker.is_file() else None
    wanted = [str(requirement) for requirement in plan.install]

    if folder.exists() and state is None:
        fail(
            f"{folder.name} in the checkout was not made by make, which installs nothing there. Missing: "
            f"{', '.join(wanted)}. Move {folder.name} away, or install that in a Python of your own."
        )
    if state and not running_in_it and state["made_for"] != made_for:
        say(f"{folder.name} was made for another python3, making it again")
        state = None
    if state is None:
        check_venv()
        make_environment(folder, made_for)
        state = {"made_for": made_for, "installed": []}

    missing = [requirement for requirement in wanted if requirement not in state["installed"]]
    if missing:
        install(folder, missing)
        state["installed"] += missing
        marker.write_text(json.dumps(state, indent=2))


def check_venv() -> None:
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        fail(
            f"python3 ({sys.executable}) cannot make environments: "
            "install its venv (Debian, Ubuntu: apt install python3-venv)."
        )


def make_environment(folder: Path, made_for: dict) -> None:
    import venv

    say(f"Making the environment {folder.name} (some seconds)")
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    (folder / MARKER).write_text(json.dumps({"made_for": made_for, "installed": []}, indent=2))
    venv.EnvBuilder(with_pip=True, symlinks=True).create(folder)
    if made_for["packages"]:
        # Not --system-site-packages: where python3 is of an environment itself, that shows the packages of the Python
        # below it, and not its own.
        own = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
        lines = [f"import site; site.addsitedir({packages!r})\n" for packages in made_for["packages"]]
        (own / "packages_of_python3.pth").write_text("".join(lines))


def install(folder: Path, requirements: list[str]) -> None:
    heavy = any(requirement.startswith("torch") for requirement in requirements)
    how_long = "3 GB to download, some minutes" if heavy else "less than a minute on most networks"
    say(f"Installing {', '.join(requirements)} into {folder.name} ({how_long})")
    # Python compiles what is imported when it is, a small part of it all: --no-compile.
    options = ["--disable-pip-version-check", "--no-input", "--no-compile"]
    pip = [str(folder / "bin" / "python3"), "-m", "pip", "install", *options]
    start = time.monotonic()
    with subprocess.Popen([*pip, *requirements], env=environment_variables(folder)) as process:
        # pip is silent while it unpacks, which for torch takes a minute or more.
        finished = threading.Event()
        heartbeat = threading.Thread(target=beat, args=(finished, start), daemon=True)
        heartbeat.start()
        status = process.wait()
        finished.set()
    if status:
        fail(f"pip could not install {', '.join(requirements)} into {folder.name}: its own message is above.")


def beat(finished: threading.Event, start: float) -> None:
    while not finished.wait(20):
        say(f"pip is at work, {time.monotonic() - start:.0f} s so far")


def check_compiler() -> None:
    named = os.environ.get("CXX", "").split()
    if not any(shutil.which(name) for name in named[:1] or ("c++", "g++", "clang++")):
        looked_for = f"CXX names {named[0]}, which is not there" if named else "no C++ compiler was found"
        fail(f"{looked_for}: install GCC 11 or newer (Debian, Ubuntu: apt install g++), or let CXX name one.")


def environment_variables(folder: Path | None) -> dict[str, str]:
    """The variables to run commands with, in an environment of ours or in none."""
    variables = dict(os.environ)
    if folder:
        variables["PATH"] = f"{folder / 'bin'}{os.pathsep}{variables.get('PATH', os.defpath)}"
        variables["VIRTUAL_ENV"] = str(folder)
        variables.pop("PYTHONHOME", None)
    # Both are defaults of CMake's own: a build folder that exists keeps its generator.
    variables.setdefault("CMAKE_GENERATOR", "Ninja")
    variables.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(count_jobs()))
    return variables


def count_jobs() -> int:
    """One compiler a core, but no more than memory has room for: PyTorch's headers take 2 GB at times."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // (2 << 30)))


def say(text: str) -> None:
    print(f"-- {text}", flush=True)


def fail(text: str) -> None:
    sys.exit(f"error: {text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", help="use this version of PyTorch")
    parser.add_argument("goal", choices=sorted(file.stem for file in (ROOT / "requirements").glob("*.txt")))
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()

    if arguments.goal != "lint":
        check_compiler()
    plan = make_plan(arguments.goal, arguments.torch)
    if plan.folder:
        prepare(plan)
    if arguments.command:
        variables = environment_variables(plan.folder)
        os.execvpe(arguments.command[0], arguments.command, variables)


if __name__ == "__main__":
    main()
