"""The library's cost model of its CUDA kernels: its constants, and its estimates with these or other ones."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy

ARITHMETICS = ("float32", "tf32", "float16", "bfloat16")
"""In the library's order."""
PROBLEM = numpy.dtype([(name, "i8") for name in ("arithmetic", "batch", "input_features", "state_size", "ranks")])
"""Zero ranks are those with the least estimate."""
ESTIMATE = numpy.dtype([("us", "f8"), ("ranks", "i4"), ("by_default", "i4")])
"""Microseconds are NaN if the candidate does not support the problem, and ranks 0 if the model does not choose them."""


class Kind(NamedTuple):
    """What a problem is: by default a single step of the LLTM, or its backward."""

    of_lstm: bool = False
    of_steps: bool = False
    """A step of a sequence."""


_CLUSTERS = ctypes.c_int * 16
"""A number for each size of a cluster."""


class Facts(ctypes.Structure):
    """What the model knows about a GPU, and the constants that it uses."""

    _fields_ = (
        ("multiprocessors", ctypes.c_int),
        ("shared_bytes_a_block", ctypes.c_int),
        ("clock", ctypes.c_int),
        ("bandwidth", ctypes.c_int),
        ("tiles", ctypes.c_bool),
        ("wgmma", ctypes.c_bool),
        ("resident", _CLUSTERS),
        ("resident_by_two", _CLUSTERS),
        ("costs", ctypes.c_void_p),
    )

    def numbers(self) -> list[int]:
        """All facts but the constants."""
        first = (self.multiprocessors, self.shared_bytes_a_block, self.clock, self.bandwidth, self.tiles, self.wgmma)
        return [int(number) for number in (*first, *self.resident, *self.resident_by_two)]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Facts:
        sizes = _CLUSTERS._length_
        if len(numbers) != 6 + 2 * sizes:
            raise ValueError(f"expected {6 + 2 * sizes} facts about the GPU, got {len(numbers)}: measure them again")
        tiles, wgmma = (bool(number) for number in numbers[4:6])
        resident, by_two = numbers[6 : 6 + sizes], numbers[6 + sizes :]
        return cls(*numbers[:4], tiles, wgmma, _CLUSTERS(*resident), _CLUSTERS(*by_two))


_NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"


def parse_costs(initializer: str) -> dict[str, float]:
    """The constants in a C++ initializer, in its order. The elements of an array are named by their index."""
    costs: dict[str, float] = {}
    path: list[str] = []
    name = ""
    for token in re.findall(rf"\.[a-z]\w*|[{{}}]|{_NUMBER}", initializer):
        if token.startswith("."):
            name = token[1:]
        elif token == "{":
            path.append(name)
            name = ""
        elif token == "}":
            path.pop()
        else:
            prefix = ".".join(path[1:])
            index = sum(key.rpartition(".")[0] == prefix for key in costs)
            costs[f"{prefix}.{name or index}".lstrip(".")] = float(token)
            name = ""
    return costs


def parse_times(lines: str) -> dict[str, float]:
    """The times of the candidates, from lines of a name and a number."""
    return {name: float(time) for name, time in map(str.split, lines.splitlines())}


def write_costs(header: str, costs: Mapping[str, float], measured: str) -> str:
    """The text of costs.h with these constants, rounded to three digits, and a comment on how they were measured."""
    macro = header.index("\nLLTM_COSTS(")
    start, end = header.index("{", macro), header.index("\n});", macro)
    block = _replaced(header[start:end], "", costs)
    return re.sub(r"// .*$", f"// {measured}.", header[:macro]) + header[macro:start] + block + header[end:]


_ROW = re.compile(r'"(\w+)"[^"{]*\{[^"{}]*\}[^"{}]*(?=\{\s*\.)')
"""A candidate in its table, up to its times."""


def _rows(source: str) -> Iterator[tuple[str, int, int]]:
    """The candidates in a table: their names, and where their times begin and end."""
    for row in _ROW.finditer(source):
        depth = 0
        for match in re.finditer(r"[{}]", source[row.end() :]):
            depth += 1 if match[0] == "{" else -1
            if depth == 0:
                yield row[1], row.end(), row.end() + match.end()
                break


def times_in(source: str) -> dict[str, float]:
    """The times in a table of candidates."""
    return {
        f"{name}.{key}": time
        for name, start, end in _rows(source)
        for key, time in parse_costs(source[start:end]).items()
    }


def write_times(source: str, costs: Mapping[str, float]) -> str:
    """The text of a table of candidates with these times."""
    parts, last = [], 0
    for name, start, end in _rows(source):
        parts += [source[last:start], _replaced(source[start:end], f"{name}.", costs)]
        last = end
    return "".join([*parts, source[last:]])


def _replaced(initializer: str, prefix: str, costs: Mapping[str, float]) -> str:
    """An initializer with the constants whose names begin with the prefix."""
    now = {prefix + name: value for name, value in parse_costs(initializer).items()}
    if not now.keys() <= costs.keys():
        raise ValueError("the sources have other constants than the library that was built")
    values = iter(now.items())

    def replaced(match: re.Match) -> str:
        name, value = next(values)
        return match[0] if costs[name] == value else match[1] + _rounded(costs[name])

    return re.sub(rf"([=,{{]\s*)({_NUMBER})", replaced, initializer)


def _rounded(value: float) -> str:
    """Three digits, as in 4.07e6."""
    return re.sub(r"e([+-])0*", lambda exponent: "e" + exponent[1].strip("+"), f"{value:.3g}")


class Model:
    """The functions in C of candidates.h."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name in ("lltm_cuda_paths", "lltm_cuda_costs", "lltm_cuda_times"):
            getattr(library, name).restype = ctypes.c_char_p
        self.selectable = tuple(library.lltm_cuda_paths().decode().split())
        of_all = parse_costs(library.lltm_cuda_costs().decode())
        self.costs = of_all | parse_times(library.lltm_cuda_times().decode())
        self._first_time = len(of_all)
        self._estimates = library.lltm_cuda_estimates
        self._estimates.restype = ctypes.c_bool
        self._facts = getattr(library, "lltm_cuda_device_facts", None)

    def current_facts(self) -> Facts:
        """Those of the current GPU."""
        facts = Facts()
        if error := self._facts(ctypes.byref(facts)):
            raise RuntimeError(f"the CUDA error {error}")
        return facts

    def estimates(
        self, candidate: str, kind: Kind, facts: Facts, problems: numpy.ndarray, costs: numpy.ndarray | None = None
    ) -> numpy.ndarray:
        """The estimates of a candidate, by its name, for an array of problems, with these constants or the library's
        own."""
        found = numpy.empty(len(problems), ESTIMATE)
        problems = numpy.ascontiguousarray(problems, PROBLEM)
        values = numpy.array(list(self.costs.values()) if costs is None else costs, dtype="f8")
        device = Facts.of(facts.numbers())
        device.costs = values.ctypes.data
        known = self._estimates(
            candidate.encode(),
            *map(ctypes.c_bool, kind),
            ctypes.byref(device),
            values[self._first_time :].ctypes.data_as(ctypes.c_void_p),
            problems.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int64(len(problems)),
            found.ctypes.data_as(ctypes.c_void_p),
        )
        if not known:
            raise ValueError(f"unknown candidate {candidate!r}")
        return found


@cache
def load() -> Model | None:
    """The model of the loaded library; None if it was built without CUDA."""
    import lltm  # only here: reports are also written on machines without the library

    library = ctypes.CDLL(str(lltm.library_path))
    return Model(library) if hasattr(library, "lltm_cuda_estimates") else None
