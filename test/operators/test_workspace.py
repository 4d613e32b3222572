"""The memory that calls take beside their results: at most 64 MiB, whatever the sizes, and of the backward less than
what the steps take."""

import gc
import itertools
from pathlib import Path

import pytest
import torch
from lltm_testing import isolated
from lltm_testing.layouts import transposed
from lltm_testing.sequence_reference import Sizes, assert_results_close, call, kept_of, make

import lltm

LIMIT = 64 << 20


def peak_of_temporaries(device, function) -> int:
    """The peak memory of a call in bytes, excluding its results."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        results = function()
        torch.cuda.synchronize()
        kept = torch.cuda.memory_allocated() - before
        peak = torch.cuda.max_memory_allocated() - before - kept
        del results
        return peak
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        results = function()
    held = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most - sum(r.nbytes for r in results)


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "lengths_and_reset"])
@pytest.mark.parametrize("sizes", [Sizes(24, 2048, 4, 256), Sizes(1, 30_000, 1, 512)], ids=["steps", "rows"])
def test_of_many_rows(device, cell, sizes, masked):
    """Neither the product with all inputs (144 MiB or more) nor that of one step of many rows (176 MiB) is
    materialized."""
    arguments = make(sizes, device=device, state=False, lengths=masked, reset=masked, cell=cell)
    assert peak_of_temporaries(device, lambda: call(arguments)) <= LIMIT


@pytest.mark.skipif(not torch.cpu._is_avx512_bf16_supported(), reason="large weights are copied to float32")
def test_of_large_weights(cell):
    """The weights are packed in pairs, in at most 48 MiB; in float32 they take at least 71 MiB."""
    arguments = make(Sizes(2, 2, 1760, 1760), torch.bfloat16, cell=cell)
    assert peak_of_temporaries(torch.device("cpu"), lambda: call(arguments)) <= LIMIT
    assert_results_close(call(arguments), arguments, keep=False)


def test_of_padded_weights(cell):
    """A few columns of state are packed as if they filled a vector."""
    arguments = make(Sizes(2, 2, 1_000_000, 1), cell=cell)
    assert peak_of_temporaries(torch.device("cpu"), lambda: call(arguments)) <= LIMIT


@pytest.mark.slow
def test_no_float_copy_of_16_bit_states(device, cell):
    """Such a copy of c_n alone would take 78 MiB."""
    arguments = make(Sizes(1, 40_000, 1, 512), torch.bfloat16, device, cell=cell)
    assert peak_of_temporaries(device, lambda: call(arguments)) <= LIMIT


def test_of_transposed_weights(device, cell):
    """Packed weights take 36 or 48 MiB, and so does a copy with contiguous rows."""
    arguments = make(Sizes(2, 1, 700, 1450), device=device, cell=cell)
    names = [name for name in cell.names if name.startswith("weight")]
    strided = arguments._replace(**{name: transposed(getattr(arguments, name)) for name in names})
    assert peak_of_temporaries(device, lambda: call(strided)) <= LIMIT
    assert_results_close(call(strided), arguments)


PRINT_PEAK_WITH_MANY_THREADS = """
import sys, lltm, torch

def resident(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(name))

torch.set_num_threads(32)
operator, *shapes = eval(sys.argv[1])
arguments = [torch.randn(shape) for shape in shapes]
call = getattr(torch.ops.lltm, operator)
call(*arguments)  # starts the threads
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # resets VmHWM, the peak
before = resident("VmRSS")
results = call(*arguments)
print(resident("VmHWM") - before - sum(result.nbytes for result in results))
"""


def test_with_many_threads(cell):
    """Measured from outside, because the profiler does not see what other threads allocate."""
    arguments = make(Sizes(1, 8192, 8, 1024), device="meta", bias=False, state=False, cell=cell)
    shapes = [tuple(getattr(arguments, name).shape) for name in arguments.given()]
    options = {"package": Path(lltm.__file__).parent.parent, "library": lltm.library_path}
    assert int(isolated.run(PRINT_PEAK_WITH_MANY_THREADS, (cell.operator, *shapes), **options)) <= LIMIT


def test_a_strided_input_is_not_copied_as_a_whole(device, cell):
    """The innermost dimension of this input, of 96 MiB, is the batch."""
    arguments = make(Sizes(24, 2048, 512, 16), torch.float32, device, state=False, cell=cell)
    strided = arguments._replace(input=transposed(arguments.input))
    assert peak_of_temporaries(device, lambda: call(strided)) <= LIMIT
    assert_results_close(call(strided), arguments)


@pytest.mark.parametrize("batch_first", [False, True])
def test_of_a_backward_does_not_grow_with_the_steps(set_threads, cell, batch_first):
    """d_gates are only kept for a chunk of steps, and gradients with contiguous features are not copied."""
    set_threads(1)
    arguments = make(Sizes(steps=4000, batch=16, input_features=4, state_size=16), cell=cell)
    results = call(arguments, keep=True)
    ones = torch.ones(16, 4000, 16).transpose(0, 1) if batch_first else torch.ones(4000, 16, 16)
    incoming = [None if name.endswith("_n") else ones for name in cell.incoming()]
    given = *incoming, *kept_of(arguments, results), *arguments, [True] * len(cell.names)
    gc.collect()  # or tensors of earlier tests might be freed in between
    with torch.profiler.profile(profile_memory=True) as profile:
        gradients = getattr(torch.ops.lltm, f"{cell.operator}_backward")(*given)
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    of_results = sum(gradient.nbytes for gradient in gradients)
    assert sum(changes) == of_results
    assert max(itertools.accumulate(changes)) - of_results < results[0].nbytes / 2
