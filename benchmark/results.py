"""The results of a run, as stored in results.json; and logs, whose entries are written one by one."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

Entry = TypeVar("Entry")


def failure(error: Exception) -> str:
    """The type of an exception and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


class Log:
    """A file of JSON lines, one per dataclass, which are kept if the run is interrupted."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("w")

    def write(self, entry: object) -> None:
        self.file.write(json.dumps(asdict(entry)) + "\n")
        self.file.flush()

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def read_logs(paths: Iterable[Path], of: type[Entry]) -> list[Entry]:
    """The entries of several logs."""
    return [of(**json.loads(line)) for path in paths for line in path.read_text().splitlines()]


@dataclass(frozen=True)
class Measurement:
    """One peer, one case and one clock. Times are in microseconds per call."""

    device: str
    threads: int
    work: str
    dtype: str
    shape: str
    clock: str
    """"wall", or "device": the time on the GPU, by replay of a graph."""
    peer: str
    median: float
    low: float
    high: float
    rounds: int
    calls_per_sample: int
    error_mean: float | None
    error_max: float | None
    minimum: float | None = None

    @property
    def state_size(self) -> int:
        return int(self.shape.split(",")[2])

    @property
    def spread(self) -> float:
        return (self.high - self.low) / (2 * self.median)


@dataclass(frozen=True)
class Kept:
    """The bytes that autograd keeps for one peer at one shape in float32."""

    device: str
    shape: str
    peer: str
    total: int
    beyond_results: int


@dataclass
class Results:
    machine: dict[str, str]
    measurements: list[Measurement] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    calls: dict[str, dict[str, float]] = field(default_factory=dict)
    """Microseconds per call by device and caller."""
    tutorial: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    """(forward, backward) in microseconds by device and peer."""
    rates: dict[str, float] = field(default_factory=dict)
    """The GPU's rates from roofline.py: multiply-adds per microsecond by dtype, and bytes per microsecond."""
    failures: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> "Results":
        content = json.loads(path.read_text())
        content["measurements"] = [Measurement(**entry) for entry in content["measurements"]]
        content["kept"] = [Kept(**entry) for entry in content["kept"]]
        return cls(**content)
