"""states() of the layers, and return_states of their calls: the state after every step."""

import copy

import pytest
import torch
from lltm_testing.graphs import Operators
from lltm_testing.module_reference import (
    assert_same,
    packed,
    random_state,
    replica_of,
    run_states,
    state_of,
    states_model,
)
from torch import Tensor
from torch.func import functional_call
from torch.nn.utils import prune
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence
from torch.utils._pytree import tree_leaves, tree_map

import lltm

pytestmark = pytest.mark.pytorch

OPTIONS = [
    {},
    {"num_layers": 2, "bidirectional": True, "bias": False},
    {"num_layers": 3, "batch_first": True, "dropout": 0.5},
]
each_options = pytest.mark.parametrize("options", OPTIONS, ids=str)


def arguments_of(rnn, steps=5, batch=3, **options):
    sizes = (batch, steps) if rnn.batch_first else (steps, batch)
    lengths = torch.tensor([steps, 2, 0][:batch], device=options.get("device"))
    reset = torch.rand(sizes, device=options.get("device")) < 0.3
    return torch.randn(*sizes, 3, **options), random_state(rnn, batch, **options), lengths, reset


@each_options
def test_against_a_loop_of_cells(options, device, cls):
    rnn = cls(3, 4, **options, dtype=torch.float64).eval()
    input, hx, lengths, reset = arguments_of(rnn, dtype=torch.float64)
    time_first = (input.transpose(0, 1), reset.transpose(0, 1)) if rnn.batch_first else (input, reset)
    with torch.no_grad():
        _, _, expected = run_states(rnn, time_first[0], hx, lengths, time_first[1])
    arguments = tree_map(lambda argument: argument.to(device), (input, hx, lengths, reset))
    rnn = rnn.to(device)
    output, state, states = rnn.states(*arguments)
    assert_same((output, state), rnn(*arguments), rtol=0, atol=0)
    if rnn.batch_first:
        expected = tree_map(lambda steps: steps.transpose(1, 2), expected)
    assert_same(tree_map(Tensor.cpu, states), expected)


@each_options
def test_a_single_sequence(cls, options):
    rnn = cls(3, 4, **options).eval()
    input, hx = torch.randn(5, 3), random_state(rnn, 1)
    single = tree_map(lambda part: part[:, 0], hx)
    reset = torch.tensor([False, False, True, False, True])
    output, state, states = rnn.states(input, single, torch.tensor(4), reset)
    assert_same((output, state), rnn(input, single, torch.tensor(4), reset), rtol=0, atol=0)
    batch = 0 if rnn.batch_first else 1
    _, _, expected = rnn.states(input.unsqueeze(batch), hx, torch.tensor([4]), reset.unsqueeze(batch))
    for steps, of_batch, last in zip(*map(tree_leaves, (states, expected, state)), strict=True):
        assert steps.shape == (last.size(0), 5, 4) and torch.equal(steps, of_batch.squeeze(batch + 1))
        assert not steps[:, 4].any()


@pytest.mark.parametrize("options", [{}, {"batch_first": True}], ids=str)
def test_continues_from_any_step(cls, options):
    """With the state after step t, a call runs the rest."""
    rnn = cls(3, 4, 2, **options)
    time = 1 if rnn.batch_first else 0
    input, hx, _, reset = arguments_of(rnn)
    output, state, states = rnn.states(input, hx, reset=reset)
    after_two = tree_map(lambda steps: steps.select(time + 1, 1), states)
    rest = rnn(input.narrow(time, 2, 3), after_two, reset=reset.narrow(time, 2, 3))
    assert_same(rest, (output.narrow(time, 2, 3), state))


@pytest.mark.parametrize("options", OPTIONS[:2], ids=str)
@pytest.mark.parametrize("enforce_sorted", [True, False])
@pytest.mark.parametrize("features", [3, 800], ids=["padded", "segments"])
def test_of_a_packed_sequence(cls, options, enforce_sorted, features):
    rnn = cls(features, 4, **options)
    lengths = [40, *[3] * 5, *[1] * 6] if enforce_sorted else [*[1] * 6, 40, *[3] * 5]
    input, hx = torch.randn(40, len(lengths), features), random_state(rnn, len(lengths))
    reset = torch.rand(40, len(lengths)) < 0.2
    sequence = packed(input, lengths, enforce_sorted=enforce_sorted)
    with Operators() as operators:
        rnn(sequence)
    layers = tree_leaves(hx)[0].size(0)
    assert (len(operators.fused()) > layers) == (features == 800)
    output, state, states = rnn.states(sequence, hx, reset=reset)
    assert_same((output, state), rnn(sequence, hx, reset=reset), rtol=0, atol=0)
    _, _, expected = rnn.states(input, hx, torch.tensor(lengths), reset)
    for steps, padded in zip([states] if isinstance(expected, Tensor) else states, tree_leaves(expected), strict=True):
        assert isinstance(steps, PackedSequence)
        assert steps.data.shape == (sum(lengths), layers, 4)
        assert torch.equal(steps.batch_sizes, sequence.batch_sizes)
        assert (steps.sorted_indices is None) == enforce_sorted
        back, its_lengths = pad_packed_sequence(steps)
        assert its_lengths.tolist() == lengths
        torch.testing.assert_close(back.permute(2, 0, 1, 3), padded)


@each_options
def test_gradients_flow_through_both(cls, options):
    model = states_model(cls, **(options | {"dropout": 0.0})).double()
    input, hx, lengths, reset = arguments_of(model.rnn, steps=3, batch=2, dtype=torch.float64)
    count = len(tree_leaves(hx))

    def states_of(input, *tensors):
        parameters = dict(zip(names, tensors[count:], strict=True))
        return tuple(
            tree_leaves(functional_call(model, parameters, (input, state_of(tensors[:count]), lengths, reset)))
        )

    names = [name for name, _ in model.named_parameters()]
    given = [tensor.detach().requires_grad_() for tensor in (input, *tree_leaves(hx), *model.parameters())]
    assert torch.autograd.gradcheck(states_of, given)
    for states in states_of(*given)[-count:]:  # either alone reaches every layer's weights
        gradients = torch.autograd.grad(states.sum(), given[1 + count :], retain_graph=True)
        assert all(gradient.any() for gradient in gradients)


def test_dropout_comes_after(device):
    """h of the first layer is what it gave, not what the second layer took."""
    rnn = lltm.LLTM(3, 64, 2, dropout=0.5, device=device)
    first = lltm.LLTM(3, 64, device=device)
    first.load_state_dict({name: rnn.state_dict()[name] for name in ("weights_l0", "bias_l0")})
    input = torch.randn(5, 3, 3, device=device)
    _, _, (h, c) = rnn.states(input)
    assert_same((h[:1], c[:1]), first.states(input)[2], rtol=0, atol=0)
    torch.manual_seed(1)
    output, _ = rnn(input)
    torch.manual_seed(1)
    assert torch.equal(rnn.states(input)[0], output)


@pytest.mark.parametrize("sizes", [(0, 3), (5, 0), (1, 1)], ids=str)
@each_options
def test_empty_and_small(cls, options, sizes):
    rnn = cls(3, 4, **options).eval()
    steps, batch = sizes
    input = torch.randn(*((batch, steps) if rnn.batch_first else sizes), 3)
    output, state, states = rnn.states(input)
    assert_same((output, state), rnn(input), rtol=0, atol=0)
    for steps, last in zip(tree_leaves(states), tree_leaves(state), strict=True):
        assert steps.shape == (last.size(0), *input.shape[:2], 4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_types(cls, dtype):
    """c_0, or a GRU's h_0, in float32 is carried exactly; the states, like output, have the input's dtype."""
    rnn = cls(3, 4, 2, dtype=dtype)
    input, hx, _, _ = arguments_of(rnn, dtype=dtype)
    *others, carried = tree_leaves(hx)
    output, state, states = rnn.states(input, state_of((*others, carried.float())))
    assert {tensor.dtype for tensor in (output, *tree_leaves(states))} == {dtype}
    assert [part.dtype for part in tree_leaves(state)] == [dtype] * len(others) + [torch.float32]
    assert_same(
        tree_map(lambda steps: steps[:, -1], states), tree_map(lambda part: part.to(dtype), state), rtol=0, atol=0
    )
    plain = cls(3, 4, 2)
    with torch.autocast("cpu", dtype):
        assert tree_leaves(plain.states(input.float())[2])[-1].dtype == dtype


def test_needs_no_gradients(cls):
    rnn = cls(3, 4, 2)
    input = torch.randn(5, 3, 3)
    with torch.inference_mode():
        without = rnn.states(input)
    assert_same(without, rnn.states(input), rtol=0, atol=0)
    assert not any(steps.requires_grad for steps in tree_leaves(without))


def test_by_vmap(cls):
    rnn = cls(3, 4, 2)
    inputs = torch.randn(6, 5, 3, 3)
    results = torch.vmap(rnn.states)(inputs)
    for index, input in enumerate(inputs):
        assert_same(tree_map(lambda result, index=index: result[index], results), rnn.states(input))


def test_errors_are_those_of_a_call():
    rnn = lltm.LLTM(3, 4)
    with pytest.raises(ValueError, match="Expected input to be 2D or 3D, got 4D"):
        rnn.states(torch.zeros(1, 5, 2, 3))
    with pytest.raises(RuntimeError, match="input_size. Expected 3, got 4"):
        rnn.states(torch.zeros(5, 2, 4))
    with pytest.raises(RuntimeError, match=r"Expected hidden\[0\] size \[1, 2, 4\], got \[1, 3, 4\]"):
        rnn.states(torch.zeros(5, 2, 3), (torch.zeros(1, 3, 4), torch.zeros(1, 3, 4)))
    with pytest.raises(TypeError, match="lengths should be a tensor, got an object of type list"):
        rnn.states(torch.zeros(5, 2, 3), None, [5, 2])
    with pytest.raises(ValueError, match="expected lengths to be None"):
        rnn.states(pack_sequence([torch.zeros(2, 3)]), lengths=torch.tensor([2]))


@pytest.mark.filterwarnings("ignore:.*(weight|spectral)_norm.* is deprecated")
@pytest.mark.parametrize(
    "constrain",
    [
        torch.nn.utils.weight_norm,
        torch.nn.utils.spectral_norm,
        lambda rnn, name: prune.l1_unstructured(rnn, name, 0.3),
        torch.nn.utils.parametrizations.weight_norm,
    ],
    ids=["old_weight_norm", "old_spectral_norm", "prune", "parametrization"],
)
def test_computed_parameters_are_those_of_now(cls, constrain):
    rnn = cls(3, 4).eval()
    constrain(rnn, rnn._parameter_names()[0][0])
    input = torch.randn(5, 2, 3)
    optimizer = torch.optim.SGD(rnn.parameters(), lr=1.0)
    for _ in range(2):
        optimizer.zero_grad()
        rnn.states(input)[0].square().sum().backward()
        optimizer.step()
    output, state, _ = rnn.states(input)
    assert_same((output, state), rnn(input), rtol=0, atol=0)


def prune_some(rnn, name) -> None:
    prune.l1_unstructured(rnn, name, 0.2)


@pytest.mark.filterwarnings("ignore:.*(weight|spectral)_norm.* is deprecated")
@pytest.mark.parametrize(
    "constraints",
    [
        ((torch.nn.utils.weight_norm, ""), (prune_some, "_g")),
        ((torch.nn.utils.weight_norm, ""), (prune_some, "_v"), (prune_some, "_v_orig")),
        ((prune_some, ""), (torch.nn.utils.weight_norm, "_orig")),
        ((torch.nn.utils.spectral_norm, ""), (prune_some, "_orig")),
        ((prune_some, ""), (prune_some, "")),  # one hook for both
    ],
    ids=["prune_of_g", "prune_of_prune_of_v", "weight_norm_of_prune", "prune_of_spectral_norm", "prune_twice"],
)
def test_chained_hooks_run_as_in_a_call(cls, constraints):
    """Each computes what the one before takes, so that a call uses what the last call has computed."""

    def make():
        torch.manual_seed(0)
        rnn = cls(3, 4)
        for constrain, suffix in constraints:
            constrain(rnn, rnn._parameter_names()[0][0] + suffix)
        return rnn

    ours, theirs = make(), make()
    input = torch.randn(5, 2, 3)
    for _ in range(3):
        output, state, _ = ours.states(input)
        assert_same((output, state), theirs(input), rtol=0, atol=0)
        with torch.no_grad():
            for rnn in (ours, theirs):
                for parameter in rnn.parameters():
                    parameter.mul_(0.75)


def test_hooks_run(cls):
    """Once, as in a call with return_states: also one that computes a parameter, and one that changes the results."""
    rnn, input = cls(3, 4), torch.randn(5, 2, 3)
    plain, calls = copy.deepcopy(rnn), []
    name = list(rnn._parameters)[-1]
    rnn.raw = torch.nn.Parameter(rnn._parameters[name].detach())
    delattr(rnn, name)
    rnn.register_forward_pre_hook(lambda module, arguments: setattr(module, name, 2 * module.raw))
    rnn.register_forward_hook(lambda module, arguments, results: calls.append(len(results)))
    with torch.no_grad():
        getattr(plain, name).mul_(2)
    expected = plain.states(input)
    assert_same(rnn.states(input), expected, rtol=0, atol=0)
    assert_same(rnn(input, return_states=True), expected, rtol=0, atol=0)
    assert_same(rnn(input), expected[:2], rtol=0, atol=0)
    assert calls == [3, 3, 2]


def test_a_replica_of_data_parallel_has_its_parameters(cls):
    rnn, input = cls(3, 4), torch.randn(5, 2, 3)
    assert_same(replica_of(rnn).states(input), rnn.states(input), rtol=0, atol=0)


def test_recorded_by_fx(cls):
    model, input = states_model(cls), torch.randn(5, 2, 3)
    traced = torch.fx.symbolic_trace(model)
    assert [node.kwargs for node in traced.graph.nodes if node.op == "call_module"] == [{"return_states": True}]
    assert_same(traced(input), model(input), rtol=0, atol=0)


@pytest.mark.parametrize("compile", [torch.compile, lambda rnn, **options: rnn.compile(**options) or rnn])
def test_compiled_in_one_graph(cls, compile, fresh_compiler):
    rnn, input = cls(3, 4, 2, bidirectional=True), torch.randn(5, 2, 3)
    expected = rnn.states(input)
    compiled = compile(rnn, fullgraph=True, backend="aot_eager")
    assert_same(compiled(input, return_states=True), expected)
    assert_same(torch.compile(lambda x: rnn.states(x), fullgraph=True, backend="aot_eager")(input), expected)
    if compiled is rnn:  # torch.compile's wrapper hands out the methods of the module itself
        assert_same(rnn.states(input), expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:.*torch.jit:FutureWarning")
def test_torchscript_refuses_the_flag_by_name(cls):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = cls(3, 4)

        def forward(self, input: torch.Tensor, flag: bool):
            return self.rnn(input, None, None, None, flag)

    model, input = torch.jit.script(Model()), torch.randn(5, 2, 3)
    assert len(model(input, False)) == 2
    message = f"{cls.__name__}: in TorchScript, results cannot depend on return_states: call states"
    with pytest.raises(torch.jit.Error, match=message):
        model(input, True)


def test_a_replica_of_data_parallel_computes_its_parameters(cls):
    rnn, input = cls(3, 4), torch.randn(5, 2, 3)
    torch.nn.utils.weight_norm(rnn, rnn._parameter_names()[0][0])
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.mul_(0.75)
    assert_same(replica_of(rnn).states(input), rnn.states(input), rtol=0, atol=0)
