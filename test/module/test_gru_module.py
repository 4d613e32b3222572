"""lltm.GRU and lltm.GRUCell beside nn.GRU and nn.GRUCell."""

import copy
import io
import itertools
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import lltm

OPTIONS = [
    {"num_layers": layers, "bidirectional": both, "batch_first": first, "bias": bias}
    for layers, both, first, bias in itertools.product([1, 2], [False, True], [False, True], [False, True])
]
each_option = pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))


def pair(dtype=torch.float64, **options):
    """nn.GRU, and an lltm.GRU made after the same seed."""
    torch.manual_seed(1)
    theirs = nn.GRU(5, 4, dtype=dtype, **options)
    torch.manual_seed(1)
    return theirs, lltm.GRU(5, 4, dtype=dtype, **options)


def state_of(module, batch=3, dtype=torch.float64):
    torch.manual_seed(2)
    return torch.randn(module.num_layers * (1 + module.bidirectional), batch, 4, dtype=dtype)


def assert_same(theirs, ours, *arguments):
    """The same results, and gradients of the arguments and parameters."""
    found = []
    for module in (theirs, ours):
        leaves = [
            PackedSequence(a.data.clone().requires_grad_(), *a[1:])
            if isinstance(a, PackedSequence)
            else a.clone().requires_grad_()
            for a in arguments
        ]
        output, h_n = module(*leaves)
        data = output.data if isinstance(output, PackedSequence) else output
        inputs = [leaf.data if isinstance(leaf, PackedSequence) else leaf for leaf in leaves]
        loss = data.sin().sum() + h_n.cos().sum()
        found.append([data, h_n, *torch.autograd.grad(loss, [*inputs, *module.parameters()])])
    for expected, actual in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@each_option
def test_the_same_seed_gives_the_same_parameters(options):
    theirs, ours = pair(**options)
    assert list(theirs.state_dict()) == list(ours.state_dict())
    for (name, expected), actual in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        assert torch.equal(expected, actual), name
    assert repr(theirs) == repr(ours)
    assert [[p.shape for p in layer] for layer in ours.all_weights] == [
        [p.shape for p in layer] for layer in theirs.all_weights
    ]
    ours.flatten_parameters()


@each_option
def test_results_and_gradients(options):
    theirs, ours = pair(**options)
    input = torch.randn(*((3, 7) if options["batch_first"] else (7, 3)), 5, dtype=torch.float64)
    assert_same(theirs, ours, input)
    assert_same(theirs, ours, input, state_of(ours))
    assert_same(theirs, ours, torch.randn(7, 5, dtype=torch.float64), state_of(ours)[:, 0])


@each_option
@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_packed(options, enforce_sorted):
    theirs, ours = pair(**options)
    lengths = [7, 4, 1] if enforce_sorted else [4, 7, 1]
    input = torch.randn(*((3, 7) if options["batch_first"] else (7, 3)), 5, dtype=torch.float64)
    packed = pack_padded_sequence(input, torch.tensor(lengths), options["batch_first"], enforce_sorted)
    assert_same(theirs, ours, packed)
    assert_same(theirs, ours, packed, state_of(ours))
    padded, h_n = ours(input, lengths=torch.tensor(lengths))
    output, packed_h_n = ours(packed)
    torch.testing.assert_close(pad_packed_sequence(output, options["batch_first"])[0], padded, rtol=0, atol=1e-12)
    torch.testing.assert_close(packed_h_n, h_n, rtol=0, atol=1e-12)


def test_segments_of_a_packed_batch_carry_the_state():
    theirs, ours = pair(bidirectional=True)
    input = torch.randn(400, 200, 5, dtype=torch.float64)
    lengths = torch.tensor([400] + [3] * 199)
    packed = pack_padded_sequence(input, lengths)
    assert_same(theirs, ours, packed, state_of(ours, 200))


def test_resets_begin_a_new_episode_in_both_directions():
    _, ours = pair(bidirectional=True, num_layers=1)
    input = torch.randn(7, 3, 5, dtype=torch.float64)
    reset = torch.zeros(7, 3, dtype=torch.bool)
    reset[4] = True
    output, h_n = ours(input, reset=reset)
    first, first_h_n = ours(input[:4])
    last, last_h_n = ours(input[4:])
    torch.testing.assert_close(output, torch.cat([first, last]), rtol=0, atol=1e-12)
    torch.testing.assert_close(h_n, torch.stack([last_h_n[0], first_h_n[1]]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("batch_first", [False, True])
def test_states(batch_first):
    _, ours = pair(num_layers=2, bidirectional=True, batch_first=batch_first)
    input = torch.randn(*((3, 7) if batch_first else (7, 3)), 5, dtype=torch.float64)
    output, h_n, h = ours.states(input)
    assert h.shape == (4, *input.shape[:2], 4)
    torch.testing.assert_close(torch.cat([h[2], h[3]], -1), output, rtol=0, atol=0)
    steps = h.transpose(1, 2) if batch_first else h
    torch.testing.assert_close(torch.stack([steps[0][-1], steps[1][0]]), h_n[:2], rtol=0, atol=0)
    packed = pack_padded_sequence(input, torch.tensor([7, 4, 1]), batch_first)
    assert ours.states(packed)[2].data.shape == (12, 4, 4)


def test_checkpoints_go_both_ways():
    theirs, ours = pair(num_layers=2)
    other, its = nn.GRU(5, 4, 2, dtype=torch.float64), lltm.GRU(5, 4, 2, dtype=torch.float64)
    other.load_state_dict(ours.state_dict())
    its.load_state_dict(theirs.state_dict())
    input = torch.randn(7, 3, 5, dtype=torch.float64)
    assert_same(other, its, input)
    assert type(ours.to_torch()) is nn.GRU
    assert_same(ours.to_torch(), ours, input)
    assert ours.to_torch().weight_hh_l1 is ours.weight_hh_l1
    for clone in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert_same(clone, ours, input)


@pytest.mark.parametrize("strict", [False, True])
def test_a_checkpoint_of_an_lltm_is_refused(strict):
    with pytest.raises(RuntimeError, match="weights_l0 is a parameter of LLTM or LLTMCell.*GRU cannot compute it"):
        lltm.GRU(5, 4).load_state_dict(lltm.LLTM(5, 4).state_dict(), strict=strict)


def test_dropout_is_that_of_nn_gru_on_the_cpu():
    theirs, ours = pair(num_layers=3, dropout=0.5)
    input = torch.randn(7, 3, 5, dtype=torch.float64)
    torch.manual_seed(3)
    expected = theirs(input)[0]
    torch.manual_seed(3)
    torch.testing.assert_close(ours(input)[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_torchscript(bidirectional):
    _, ours = pair(num_layers=2, bidirectional=bidirectional)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = ours

        def forward(self, input: torch.Tensor, hx: torch.Tensor):
            return self.rnn(input, hx)

    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(Model()), buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    input = torch.randn(7, 3, 5, dtype=torch.float64)
    for actual, expected in zip(loaded(input, state_of(ours)), ours(input, state_of(ours)), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_one_graph_and_export():
    _, ours = pair(torch.float32, num_layers=2, bidirectional=True)
    input = torch.randn(7, 3, 5)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(input), ours(input), rtol=0, atol=0)
    shapes = {"input": {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(ours.eval(), (input,), dynamic_shapes=shapes)
    longer = torch.randn(9, 4, 5)
    torch.testing.assert_close(program.module()(longer), ours(longer), rtol=0, atol=0)
    decomposed = program.run_decompositions(torch.export.default_decompositions() | lltm.decompositions())
    assert "lltm" not in str(decomposed.graph)
    torch.testing.assert_close(decomposed.module()(longer), ours(longer), rtol=1e-5, atol=1e-5)


ERRORS = [
    (
        (torch.zeros(7, 5), torch.zeros(1, 1, 4)),
        "GRU: For unbatched 2-D input, hx should also be 2-D but got 3-D tensor",
    ),
    ((torch.zeros(7, 3, 5), torch.zeros(1, 2, 4)), "GRU: Expected hidden size [1, 3, 4], got [1, 2, 4]"),
    ((torch.zeros(7, 3, 6),), "GRU: input.size(-1) must be equal to input_size. Expected 5, got 6"),
    ((torch.zeros(7),), "GRU: Expected input to be 2D or 3D, got 1D instead"),
    (
        (torch.zeros(7, 3, 5), (torch.zeros(1, 3, 4),) * 2),
        "GRU: expected hx to be the tensor h_0, got an object of type tuple",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), ERRORS)
def test_errors(arguments, message):
    with pytest.raises((RuntimeError, ValueError, TypeError)) as raised:
        lltm.GRU(5, 4)(*arguments)
    assert str(raised.value) == message


@pytest.mark.parametrize("bias", [False, True])
def test_cell(bias):
    torch.manual_seed(1)
    theirs = nn.GRUCell(5, 4, bias, dtype=torch.float64)
    torch.manual_seed(1)
    ours = lltm.GRUCell(5, 4, bias, dtype=torch.float64)
    assert isinstance(ours, nn.GRUCell) and torch.equal(theirs.weight_hh, ours.weight_hh)
    for shape in ((5,), (3, 5)):
        input = torch.randn(shape, dtype=torch.float64)
        h = torch.randn(*shape[:-1], 4, dtype=torch.float64)
        for hx in (None, h):
            torch.testing.assert_close(ours(input, hx), theirs(input, hx), rtol=0, atol=1e-12)
    assert type(ours.to_torch()) is nn.GRUCell
    torch.testing.assert_close(torch.jit.script(ours)(input, h), ours(input, h), rtol=0, atol=0)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(input, h), ours(input, h), rtol=0, atol=0)


def test_a_cell_returns_h_in_the_dtype_of_hx():
    cell = lltm.GRUCell(5, 4, dtype=torch.bfloat16)
    input = torch.randn(3, 5, dtype=torch.bfloat16)
    assert cell(input).dtype == torch.bfloat16
    assert cell(input, torch.zeros(3, 4)).dtype == torch.float32
    with pytest.raises(ValueError, match=r"^GRUCell: Expected hidden to be 1D or 2D, got 3D instead$"):
        cell(input, torch.zeros(1, 3, 4))
    with pytest.raises(RuntimeError, match=r"^GRUCell: Expected hidden size \[3, 4\], got \[2, 4\]$"):
        cell(input, torch.zeros(2, 4))


def test_convert_and_revert():
    model = nn.ModuleDict({"rnn": nn.GRU(5, 4, 2), "cell": nn.GRUCell(5, 4), "lstm": nn.LSTM(5, 4)})
    weight, input = model["rnn"].weight_hh_l0, torch.randn(7, 3, 5)
    expected = model["rnn"](input)
    assert lltm.convert(model) is model
    assert [type(module) for module in model.values()] == [lltm.GRU, lltm.GRUCell, lltm.LSTM]
    assert model["rnn"].weight_hh_l0 is weight
    torch.testing.assert_close(model["rnn"](input), expected, rtol=0, atol=1e-6)
    lltm.revert(model)
    assert [type(module) for module in model.values()] == [nn.GRU, nn.GRUCell, nn.LSTM]
    assert model["rnn"].mode == "GRU"
    torch.testing.assert_close(model["rnn"](input), expected, rtol=0, atol=0)


def test_convert_lstm_leaves_a_gru():
    model = nn.Sequential(nn.GRU(5, 4), nn.LSTM(5, 4))
    lltm.convert_lstm(model)
    assert type(model[0]) is nn.GRU and type(model[1]) is lltm.LSTM


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True}], ids=str)
def test_on_a_gpu(needs_cuda, options, dtype):
    """Close to nn.GRU in float64 on the same GPU, with and without packs and a state."""
    theirs, ours = (module.cuda() for module in pair(**options))
    ours = ours.to(dtype)
    theirs.load_state_dict(ours.state_dict())  # rounded
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}[dtype]
    first = options.get("batch_first", False)
    input = torch.randn(*((3, 7) if first else (7, 3)), 5).to(dtype).cuda()
    state = state_of(ours, dtype=dtype).cuda()
    packed = pack_padded_sequence(input, torch.tensor([4, 7, 1]), first, enforce_sorted=False)
    for arguments in ((input,), (input, state), (packed,), (packed, state)):
        found = []
        for module, to in ((theirs, torch.float64), (ours, dtype)):
            output, h_n = module(*(a.to(to) for a in arguments))
            data = output.data if isinstance(output, PackedSequence) else output
            loss = data.double().sin().sum() + h_n.double().cos().sum()
            found.append([data, h_n, *torch.autograd.grad(loss, list(module.parameters()))])
        for expected, actual in zip(*found, strict=True):
            scale = max(1.0, expected.abs().max().item())
            torch.testing.assert_close(actual.double(), expected, rtol=0, atol=tolerance * scale)


def test_a_cell_on_a_gpu(needs_cuda):
    torch.manual_seed(1)
    theirs = nn.GRUCell(5, 4, dtype=torch.float64, device="cuda")
    ours = lltm.GRUCell(5, 4, dtype=torch.float64, device="cuda")
    ours.load_state_dict(theirs.state_dict())
    input, hx = (torch.randn(3, size, dtype=torch.float64, device="cuda") for size in (5, 4))
    torch.testing.assert_close(ours(input, hx), theirs(input, hx), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ours(input), theirs(input), rtol=1e-10, atol=1e-10)
