"""A run: every case and every peer in turn, with a progress bar."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import calls
import machine
import timing
import torch
from cases import DTYPES, TUTORIAL_SHAPES, Case, Shape, Work, make_cases
from peers import PEERS, Peer, applicable, load_libraries
from results import Kept, Measurement, Results, failure
from rich.progress import Progress
from roofline import measure_rates
from workload import environment, errors, kept_bytes, make_call

SECTIONS = (*(str(work) for work in Work), "memory", "calls", "tutorial")


@dataclass(frozen=True)
class Settings:
    build_dir: Path
    devices: list[str]
    threads: list[int]
    sections: list[str]
    dtypes: list[str]
    shapes: list[Shape]
    peers: list[str]
    quick: bool
    seconds: float | None

    @property
    def budget(self) -> timing.Budget:
        budget = timing.QUICK if self.quick else timing.FULL
        return dataclasses.replace(budget, seconds=self.seconds) if self.seconds else budget


def measure(settings: Settings, progress: Progress, save: Callable[[Results], None]) -> Results:
    """Run everything. After each case, `save` receives the results so far, so that an interrupted run keeps them."""
    load_libraries(settings.build_dir)
    results = Results(machine.describe(settings.devices))
    for name, value in results.machine.items():
        progress.console.print(f"{name}: {value}", highlight=False)
    progress.console.print(f"threads: {settings.threads}", highlight=False)

    works = [work for work in Work if str(work) in settings.sections]
    cases = make_cases(settings.devices, settings.threads, works, settings.dtypes, settings.shapes)
    extras = _extras(settings, results)
    task = progress.add_task("starting", total=len(cases) + len(extras))
    for case in cases:
        progress.update(task, description=str(case))
        _attempt(results, progress, str(case), lambda case=case: results.measurements.extend(_measure(case, settings)))
        save(results)
        progress.advance(task)
    for name, extra in extras.items():
        progress.update(task, description=name)
        _attempt(results, progress, name, extra)
        progress.advance(task)
    if "cuda" in settings.devices:
        results.machine |= machine.gpu_clocks()  # as they are under load
    save(results)
    return results


def _attempt(results: Results, progress: Progress, name: str, work: Callable[[], object]) -> None:
    """If a peer fails, a long run continues, and the results name the peer."""
    try:
        work()
    except Exception as error:  # whatever a peer raises
        message = f"{name}: {failure(error)}"
        results.failures.append(message)
        progress.console.print(f"[red]{message}")


def _measure(case: Case, settings: Settings) -> list[Measurement]:
    # Compiled code is specialized on sizes and threads. Reset, to stay within Dynamo's limit of recompilations.
    torch._dynamo.reset()
    torch._inductor.config.cpp.threads = case.threads
    with environment(case):
        cells = {
            peer: peer.make(case.shape, case.device, case.torch_dtype) for peer in applicable(case, settings.peers)
        }
        found_errors = errors(case, cells)
        step = {peer.name: make_call(case, cell) for peer, cell in cells.items()}
        if case.device == "cuda":
            clocks = {
                "device": timing.cuda_graph(step, settings.budget),
                "wall": timing.wall(step, settings.budget, torch.cuda.synchronize),
            }
        else:
            clocks = {"wall": timing.wall(step, settings.budget)}
    return [
        Measurement(
            case.device, case.threads, str(case.work), case.dtype, str(case.shape), clock, name,
            found.median, found.low, found.high, found.rounds, found.calls_per_sample,
            *found_errors.get(name, (None, None)), found.minimum,
        )
        for clock, timings in clocks.items()
        for name, found in timings.items()
    ]  # fmt: skip


def _extras(settings: Settings, results: Results) -> dict[str, Callable[[], None]]:
    """The measurements that are made once per device, by name."""
    peers = [PEERS[name] for name in settings.peers if PEERS[name].is_cell]
    extras: dict[str, Callable[[], None]] = {}
    # The roofline is only shown for the device times of these.
    if "cuda" in settings.devices and {str(Work.FORWARD), str(Work.TRAINING)}.intersection(settings.sections):
        dtypes = [dtype for dtype in DTYPES["cuda"] if dtype in settings.dtypes]
        extras["cuda rates"] = lambda: results.rates.update(measure_rates(dtypes))
    for device in settings.devices:
        if "memory" in settings.sections:
            extras[f"{device} memory"] = lambda device=device: results.kept.extend(_memory(device, peers))
        if "calls" in settings.sections:
            extras[f"{device} calls"] = lambda device=device: _calls(device, settings, results)
        if "tutorial" in settings.sections:
            extras[f"{device} tutorial"] = lambda device=device: _tutorial(device, peers, settings, results)
    return extras


def _memory(device: str, peers: list[Peer]) -> list[Kept]:
    found = []
    for shape in TUTORIAL_SHAPES:
        case = Case(device, torch.get_num_threads(), Work.TRAINING, "float32", shape)
        torch._dynamo.reset()
        with environment(case):
            for peer in peers:
                cell = peer.make(shape, device, torch.float32)
                found.append(Kept(device, str(shape), peer.name, *kept_bytes(case, cell)))
    return found


def _calls(device: str, settings: Settings, results: Results) -> None:
    python = {name: found.median for name, found in calls.python_calls(device, settings.budget).items()}
    results.calls.setdefault(device, {}).update(python)
    results.calls[device].update(calls.cpp_calls(settings.build_dir).get(device, {}))


def _tutorial(device: str, peers: list[Peer], settings: Settings, results: Results) -> None:
    torch._dynamo.reset()
    results.tutorial[device] = calls.tutorial_table(device, peers, settings.budget)
