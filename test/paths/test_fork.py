"""Processes forked after calls in the parent, such as the workers of a DataLoader.

GNU OpenMP has no threads in such a child: every operator that uses several threads there hangs, including PyTorch's,
which is why the workers of a DataLoader use one. With one thread everything works.
"""

import os
import traceback
from pathlib import Path

import pytest
import torch
from lltm_testing import isolated, sequence_reference
from lltm_testing.reference import call, call_backward, make_arguments, make_gradients
from torch.utils.data import DataLoader, Dataset

import lltm

SIZES = (256, 64, 128)  # enough work for several threads


@pytest.fixture
def two_threads(set_threads):
    set_threads(2)


def in_a_child(function) -> str:
    """Runs `function` in a child with one thread, and returns its error, if any."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            function()
        except BaseException:
            os.write(sender, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(sender)
    with os.fdopen(receiver, "rb") as file:
        problem = file.read().decode()
    _, status = os.waitpid(child, 0)
    return problem or (f"the child ended with {status}" if status else "")


def test_calls_in_a_child(two_threads):
    arguments = make_arguments(SIZES)
    grads = make_gradients(arguments)
    sequences = [sequence_reference.make((3, *SIZES), cell=cell) for cell in sequence_reference.CELLS.values()]
    grads_of_sequences = [sequence_reference.make_gradients(given) for given in sequences]

    def run():
        # Not through autograd, which raises after a fork if it has threads.
        results = [*call(arguments), *call_backward(*grads, arguments)]
        for given, incoming in zip(sequences, grads_of_sequences, strict=True):
            results += [*sequence_reference.call(given), *sequence_reference.call_backward(incoming, given)]
        return results

    expected = run()

    def check():
        for found, value in zip(run(), expected, strict=True):
            torch.testing.assert_close(found, value)

    assert in_a_child(check) == ""
    check()


@pytest.mark.parametrize(("module", "weights"), [("LLTM", "weights_l0"), ("LSTM", "weight_hh_l0")])
def test_a_child_forked_after_the_import(module, weights):
    """Without a call in the parent, the child may use several threads, and train."""
    program = """
import os, sys, lltm, torch
child = os.fork()
if child == 0:
    torch.set_num_threads(2)
    rnn = getattr(lltm, sys.argv[1])(64, 128)
    rnn(torch.randn(3, 256, 64))[0].sum().backward()
    os._exit(0 if getattr(rnn, sys.argv[2]).grad.abs().sum() > 0 else 1)
print(os.waitpid(child, 0)[1])
"""
    package = Path(lltm.__file__).parents[1]
    assert isolated.run(program, module, weights, package=package, library=lltm.library_path) == "0"


class States(Dataset):
    """Runs a cell on each example, in the worker."""

    def __init__(self, cell):
        self.cell = cell
        self.inputs = torch.randn(12, 8)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        with torch.no_grad():
            return self.cell(self.inputs[index : index + 1])[0]


@pytest.mark.parametrize("cls", [lltm.LLTMCell, lltm.LSTMCell])
def test_workers_of_a_data_loader(two_threads, cls):
    states = States(cls(8, 16))
    with torch.no_grad():
        expected, _ = states.cell(states.inputs)
    call(make_arguments(SIZES))
    loader = DataLoader(states, batch_size=4, num_workers=2, multiprocessing_context="fork")
    torch.testing.assert_close(torch.cat(list(loader)).squeeze(1), expected)
