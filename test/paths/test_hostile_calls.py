"""The arguments of hostile.py, which no caller should pass. They are rejected with a tested message or handled like any
other, and the next call is correct.

The calls are made in another process, which reports each of them: if it dies, the call that it was making has failed,
and a new process continues with the next one.
"""

import os
import re
import warnings
from typing import NamedTuple

import pytest
import torch
from lltm_testing import named_arguments
from lltm_testing.hostile import KINDS, NOT_READ_WITH_GRADIENTS
from lltm_testing.isolated import CONTEXT
from lltm_testing.named_arguments import NAMES
from lltm_testing.reference import assert_backward_close, assert_identical

# If the process dies more often, something is wrong in general rather than with a few calls.
MOST_DEATHS = 20


class Call(NamedTuple):
    operator: str
    kind: str
    argument: str
    gradients: bool


class Outcome(NamedTuple):
    error: str
    """The type of the exception, or empty if there was none."""
    text: str
    """The message of the exception, or what is wrong with the results."""
    next_is_right: bool


def calls_of(operator: str, device: str) -> list[Call]:
    return [
        Call(operator, kind, name, gradients)
        for kind, properties in KINDS.items()
        if properties.device in (None, device)
        for name in NAMES[operator]
        if properties.arguments(name)
        for gradients in (False, True)
    ]


def with_gradients(arguments: dict, wanted: bool) -> dict:
    return {
        name: value.detach().requires_grad_() if wanted and value.dtype.is_floating_point else value
        for name, value in arguments.items()
    }


def difference(found, expected) -> str:
    """What is wrong with the results, if anything."""
    try:
        for result, value in zip(found, expected, strict=True):
            result = getattr(result, "wrapped", result)
            torch.testing.assert_close(result.as_subclass(torch.Tensor).detach(), value.detach())
    except (AssertionError, AttributeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def make_call(call: Call, device: str) -> Outcome:
    torch.manual_seed(0)
    good = named_arguments.make(call.operator, device)

    def run(arguments: dict):
        return named_arguments.call(call.operator, arguments)

    right = [result.clone() for result in run(good)]
    arguments = with_gradients(good, call.gradients)
    error = text = ""
    try:
        if call.kind == "death":  # used by the test of a dying process
            os.abort()
        hostile = KINDS[call.kind].make(good[call.argument].clone())
        results = run(arguments | {call.argument: hostile})
        if KINDS[call.kind].refusal is None:
            plain = getattr(hostile, "wrapped", hostile).as_subclass(torch.Tensor).detach()
            plain = torch.add(plain, 0).clone(memory_format=torch.contiguous_format)
            text = difference(results, run(arguments | {call.argument: plain}))
        else:
            text = "it was taken"
    except Exception as exception:
        error, text = type(exception).__name__, str(exception)
    return Outcome(error, text, all(map(torch.equal, run(good), right)))


def make_calls(calls: list[Call], device: str, sender) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for call in calls:
        sender.send(make_call(call, device))


def outcomes_of(calls: list[Call], device: str) -> dict[Call, Outcome]:
    outcomes: dict[Call, Outcome] = {}
    deaths = 0
    while len(outcomes) < len(calls):
        assert deaths <= MOST_DEATHS, f"{deaths} processes died, the last of {calls[len(outcomes) - 1]}"
        rest = calls[len(outcomes) :]
        receiver, sender = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=make_calls, args=(rest, device, sender))
        process.start()
        sender.close()
        for call in rest:
            try:
                outcomes[call] = receiver.recv()
            except EOFError:
                process.join()
                outcomes[call] = Outcome("death", f"the process died with exit code {process.exitcode}", False)
                deaths += 1
                break
        process.join()
    return outcomes


@pytest.fixture(scope="module")
def outcomes(device, operator) -> dict[Call, Outcome]:
    """The outcomes of all calls of an operator, made at once: they take less time than starting the process."""
    return outcomes_of(calls_of(operator, device.type), device.type)


def expected_refusal(call: Call, device: str) -> str | None:
    kind = KINDS[call.kind]
    refusal = kind.refusal
    if call.gradients and call.operator.endswith("backward"):
        refusal = kind.refusal_with_gradients or refusal
    fields = {"operator": call.operator, "name": call.argument, "device": device.upper()}
    for field, value in fields.items():
        refusal = refusal and refusal.replace(f"{{{field}}}", value)
    return refusal


def failure(call: Call, outcome: Outcome, device: str) -> str:
    """Why an outcome is not the expected one."""
    refusal = expected_refusal(call, device)
    if not outcome.next_is_right:
        return f"the next call is wrong, after {outcome}"
    if refusal is None:
        return f"{outcome}" if outcome.error or outcome.text else ""
    if not outcome.error:
        is_read = not (call.gradients and call.argument in NOT_READ_WITH_GRADIENTS.get(call.operator, ()))
        return outcome.text if is_read else ""
    error = KINDS[call.kind].error
    is_expected = error is Exception or outcome.error in (error.__name__, "NotImplementedError")
    return "" if is_expected and re.match(refusal, outcome.text) else f"expected {refusal!r}, got {outcome}"


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_argument(outcomes, device, kind):
    found = {call: outcome for call, outcome in outcomes.items() if call.kind == kind}
    if not found:
        pytest.skip("not on this device")
    reasons = {call: failure(call, outcome, device.type) for call, outcome in found.items()}
    assert not any(reasons.values()), "\n".join(f"{call}: {reason}" for call, reason in reasons.items() if reason)


@pytest.mark.parametrize(
    ("mask", "type_name"),
    [(None, "NoneType"), (5, "int"), (True, "bool"), ("x", "str"), (torch.ones(5, dtype=torch.bool), "Tensor")],
    ids=str,
)
def test_masks_of_other_types(device, mask, type_name):
    arguments = named_arguments.make("backward", device)
    message = (
        r"^lltm::backward\(\) Expected a value of type 'List\[bool\]' for argument 'output_mask' "
        f"but instead found type '{type_name}'"
    )
    with pytest.raises(RuntimeError, match=message):
        torch.ops.lltm.backward(*arguments.values(), mask)


def test_too_few_and_too_many_arguments(device):
    arguments = list(named_arguments.make("forward", device).values())
    with pytest.raises(RuntimeError, match=r"^lltm::forward\(\) is missing value for argument 'input'"):
        torch.ops.lltm.forward()
    with pytest.raises(RuntimeError, match=r"^lltm::forward\(\) is missing value for argument 'old_cell'"):
        torch.ops.lltm.forward(*arguments[:-1])
    too_many = r"^lltm::forward\(\) expected at most 5 argument\(s\) but received 6 argument\(s\)"
    with pytest.raises(RuntimeError, match=too_many):
        torch.ops.lltm.forward(*arguments, 1)
    with pytest.raises(RuntimeError, match=too_many):
        torch.ops.lltm.forward(*arguments, unknown=1)


def expanded(device, *shape):
    return torch.zeros((), device=device).expand(shape)


@pytest.mark.parametrize("batch", [2**45, 2**59])
def test_results_that_no_memory_holds(device, batch):
    """Each argument is a single number, expanded."""
    message = "can't allocate memory|out of memory|Storage size calculation overflowed"
    good = named_arguments.make("forward", device)
    weights, bias = good["weights"], good["bias"]
    right = torch.ops.lltm.forward(*good.values())
    states = [expanded(device, batch, 4) for _ in range(4)]
    with pytest.raises(RuntimeError, match=message):
        torch.ops.lltm.forward(expanded(device, batch, 5), weights, bias, *states[:2])
    with pytest.raises(RuntimeError, match=message):
        gates = expanded(device, batch, 12)
        torch.ops.lltm.backward(*states[:3], gates, expanded(device, batch, 5), weights, bias, states[3], [True] * 5)
    assert_identical(torch.ops.lltm.forward(*good.values()), right)


def test_a_workspace_of_another_call(device):
    """Whatever new_cell and gates contain, backward computes the derivative there."""
    arguments = named_arguments.make("backward", device)
    for value in (0.0, -20.0, 20.0):
        foreign = arguments | {"gates": torch.full_like(arguments["gates"], value)}
        assert_backward_close(named_arguments.call("backward", foreign), **foreign)


def test_a_process_that_dies_fails_its_call_alone():
    calls = [Call("forward", kind, "input", False) for kind in ("none", "death", "subclass")]
    outcomes = outcomes_of(calls, "cpu")
    assert [outcome.error for outcome in outcomes.values()] == ["RuntimeError", "death", ""]
    assert outcomes[calls[1]].text == "the process died with exit code -6"
