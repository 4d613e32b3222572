"""Makes the calls of cases and compares them with the expected results.

Each comparison yields one number, which stays on the device until hundreds of them can be fetched at once. This keeps a
GPU busy, because comparisons do not synchronize.
"""

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from lltm_testing.bounds import Bounded
from lltm_testing.random_calls.calls import Call, Results, set_process_state
from lltm_testing.random_calls.cases import Case
from lltm_testing.random_calls.operators import OPERATORS
from lltm_testing.reference import assert_no_aliases

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
POOL = ThreadPoolExecutor(4)


class Wrong(AssertionError):
    """A wrong result. `case` is its call."""

    def __init__(self, case: Case, message: str):
        super().__init__(f"{message}, of the call\n{case}")
        self.case = case


class Group(NamedTuple):
    """The key by which errors are grouped in the report."""

    operator: str
    dtype: torch.dtype
    path: str

    @staticmethod
    def of(case: Case, call: Call) -> "Group":
        return Group(case.operator, call.dtypes[0], f"{case.path} tf32" if case.tf32 else case.path or "")


class Check(NamedTuple):
    case: Case
    group: Group
    name: str
    excess: Tensor
    """0-dimensional, on the case's device. Wrong if it is above 1."""


class Checker:
    """Makes calls and compares their results. Raises Wrong, at the latest in finish()."""

    def __init__(self, batch: int = 512):
        self.batch = batch
        self.calls: Counter[str] = Counter()
        self.refused = 0
        self.repeated: Counter[str] = Counter()
        self.features: Counter[str] = Counter()
        self.worst: dict[Group, tuple[float, str]] = {}
        self._pending: list[Check] = []

    def check(self, case: Case) -> None:
        set_process_state(case)
        try:
            self._check(case)
        except RuntimeError as error:
            if f": LLTM_CUDA_PATH={case.path} " not in str(error):
                raise
            self.refused += 1

    def _check(self, case: Case) -> None:
        call = OPERATORS[case.operator].prepare(case)
        group = Group.of(case, call)

        def later(name: str, excess: Tensor) -> None:
            self._pending.append(Check(case, group, name, excess))

        before = [None if tensor is None else bits(tensor).clone() for tensor in call.arguments]
        results = call.run()
        self.calls[case.operator] += 1
        self.features.update(case.features())
        expected = call.expected()
        for name, dtype, result, bounded in zip(call.names, call.dtypes, results, expected, strict=True):
            check_metadata(case, name, dtype, result, bounded)
            if result is not None:
                later(name, bounded.excess(result, finite=not case.poison))
        check_aliases(case, call, results)
        if case.repeated or case.callers > 1:
            self.repeated[case.operator] += 1
            for other in call_again(case, call):
                for name, result, repetition, bounded in zip(call.names, results, other, expected, strict=True):
                    if result is not None:
                        excess = (
                            differs(bits(result), bits(repetition))
                            if call.has_same_bits
                            else bounded.excess(repetition, finite=not case.poison)
                        )
                        later(f"{name} of another call", excess)
        for argument, old in zip(call.arguments, before, strict=True):
            if argument is not None:
                later("an argument after the call", differs(bits(argument), old))
        if len(self._pending) >= self.batch:
            self.finish()

    def finish(self) -> None:
        """Fetches all comparisons; raises for the first wrong one."""
        checks, self._pending = self._pending, []
        if not checks:
            return
        wrong = None
        for check, excess in zip(checks, torch.stack([check.excess for check in checks]).tolist(), strict=True):
            if not excess <= 1:
                wrong = wrong or Wrong(check.case, f"{check.name} is off by {excess:.3g} times what is allowed")
            elif excess > self.worst.get(check.group, (-1.0, ""))[0]:
                self.worst[check.group] = excess, check.name
        if wrong:
            raise wrong


def check_metadata(case: Case, name: str, dtype: torch.dtype, result: Tensor | None, expected: Bounded | None) -> None:
    if (result is None) != (expected is None):
        raise Wrong(case, f"{name} is {'None' if result is None else 'a tensor'}")
    if result is None:
        return
    found = (result.dtype, result.device.type, result.shape)
    if found != (dtype, case.device, expected.value.shape):
        raise Wrong(case, f"{name} has another dtype, device or shape: {found}")


def check_aliases(case: Case, call: Call, results: Results) -> None:
    if call.may_share_storage:
        return
    try:
        assert_no_aliases(results, call.arguments)
    except AssertionError as error:
        raise Wrong(case, str(error)) from None


def call_again(case: Case, call: Call) -> Iterable[Results]:
    if case.callers == 1:
        return [call.run()]

    def run(_) -> Results:
        torch.set_num_threads(case.threads)  # OpenMP's setting is per thread, and ATen's bits depend on it
        return call.run()

    return POOL.map(run, range(case.callers))


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(INTEGERS[tensor.element_size()])


def differs(a: Tensor, b: Tensor) -> Tensor:
    """The error as a fraction of the bound: 0 if all bits are the same, else infinite."""
    return torch.where((a != b).any(), torch.inf, 0.0)
