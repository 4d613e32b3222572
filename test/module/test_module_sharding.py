"""A group of two processes: DTensors with a sharded batch, DistributedDataParallel and FSDP2 give the same results as a
single process. Also nn.DataParallel, and docs/several-gpus.md."""

import itertools
import os
from functools import partial

import pytest
import torch
import torch.distributed as dist
from lltm_testing import named_arguments
from lltm_testing.building import ROOT, run, with_lltm
from lltm_testing.documentation import blocks
from lltm_testing.module_reference import replica_of
from lltm_testing.sequence_reference import Sizes, call, make, make_gradients
from torch import nn

import lltm

pytestmark = pytest.mark.pytorch

PAGE = ROOT / "docs" / "several-gpus.md"
STEPS = 5


def replicate(module, mesh) -> None:
    from torch.distributed.tensor import distribute_tensor

    for name, parameter in list(module.named_parameters()):
        setattr(module, name, nn.Parameter(distribute_tensor(parameter.detach(), mesh)))


def assert_whole(shards, expected) -> None:
    for shard, whole in zip(shards, expected, strict=True):
        assert (shard is None) == (whole is None)
        if shard is not None:
            torch.testing.assert_close(shard.full_tensor(), whole)


def check_module(make_module, mesh, batch) -> None:
    """With a sharded batch, lengths and reset, only the gradients of the parameters are summed."""
    from torch.distributed.tensor import Partial, Shard, distribute_tensor

    rnn = make_module(3, 4, 2, bidirectional=True, dtype=torch.float64)
    input, lengths, reset = torch.randn(STEPS, batch, 3).double(), torch.arange(batch), torch.rand(STEPS, batch) < 0.3
    output, state = rnn(input, None, lengths, reset)
    expected = torch.autograd.grad(output.sin().sum() + state[1].sum(), list(rnn.parameters()))
    replicate(rnn, mesh)
    sharded = distribute_tensor(input, mesh, [Shard(1)]).requires_grad_()
    result, state_n = rnn(
        sharded, None, distribute_tensor(lengths, mesh, [Shard(0)]), distribute_tensor(reset, mesh, [Shard(1)])
    )
    assert_whole((result, *state_n), (output, *state))
    found = torch.autograd.grad(result.sin().sum() + state_n[1].sum(), [sharded, *rnn.parameters()])
    assert_whole(found[1:], expected)
    if batch > 1:
        assert result.placements == found[0].placements == (Shard(1),)
        assert all(gradient.placements == (Partial(),) for gradient in found[1:])


def check_cell(mesh) -> None:
    """The last dimension of the mesh splits the batch."""
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    cell, input, state = lltm.LLTMCell(3, 4), torch.randn(3, 3), torch.randn(2, 3, 4).unbind()
    leaves = [tensor.clone().requires_grad_() for tensor in (input, *state)]
    expected = cell(leaves[0], tuple(leaves[1:]))
    gradients = torch.autograd.grad(expected[0].sum(), [*leaves, *cell.parameters()])
    replicate(cell, mesh)
    others = (Replicate(),) * (mesh.ndim - 1)
    sharded = [distribute_tensor(tensor, mesh, (*others, Shard(0))).requires_grad_() for tensor in (input, *state)]
    found = cell(sharded[0], tuple(sharded[1:]))
    assert found[0].placements == (*others, Shard(0))
    assert_whole(found, expected)
    found = torch.autograd.grad(found[0].sum(), [*sharded, *cell.parameters()])
    assert_whole(found, gradients)
    assert [gradient.placements[-1] for gradient in found] == [Shard(0)] * 3 + [Partial()] * 2


def check_operators(mesh) -> None:
    """Other placements are redistributed: sharded features are gathered, and replicated batches are sharded."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    arguments = make(Sizes(STEPS, 3, 2, 4), torch.float64, lengths=True, reset=True, reverse=True)
    gradients = make_gradients(arguments, (True, False, True, False))
    results = call(arguments, keep=True)

    def distribute(tensor, *placements):
        return None if tensor is None else distribute_tensor(tensor, mesh, placements)

    for placements in [(Shard(2), Replicate(), Replicate(), Shard(0)), (Shard(0), Shard(0), Shard(0), Replicate())]:
        sharded = arguments._replace(
            **{
                name: distribute(getattr(arguments, name), placement)
                for name, placement in zip(("input", "weights", "bias", "h0"), placements, strict=True)
            },
            **{name: distribute(getattr(arguments, name), Replicate()) for name in ("c0", "lengths", "reset")},
        )
        found = call(sharded, keep=True)
        assert all(isinstance(result, DTensor) for result in found)
        assert_whole(found, results)
        assert_whole(call(sharded)[3:], call(arguments)[3:])
        for mask in ([True] * 5, [True, False, True, False, False]):
            saved, whole = ((r[0], r[3], r[4]) for r in (found, results))
            assert_whole(
                torch.ops.lltm.sequence_backward(
                    *(distribute(g, Replicate()) for g in gradients), *saved, *sharded, mask
                ),
                torch.ops.lltm.sequence_backward(*gradients, *whole, *arguments, mask),
            )


def check_redistributed_leaves(operator, mesh) -> None:
    """Tensors that require gradients are redistributed, too."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    torch.manual_seed(0)
    arguments = named_arguments.leaves_of(named_arguments.make(operator, dtype=torch.float64))
    differentiable = [name for name, tensor in arguments.items() if tensor.requires_grad]

    def gradients(values):
        results = named_arguments.call(operator, values)[:4]
        loss = sum(r.sin().sum() for r in results if r is not None and r.requires_grad)
        return torch.autograd.grad(loss, [values[name] for name in differentiable], allow_unused=True)

    expected = gradients(arguments)
    for placement_of_input in (Shard(arguments["input"].dim() - 2), Shard(arguments["input"].dim() - 1)):
        for placement in (Replicate(), Shard(0)):
            placements = dict.fromkeys(arguments, placement) | {"input": placement_of_input}
            sharded = {
                each: distribute_tensor(tensor.detach(), mesh, [placements[each]]).requires_grad_(tensor.requires_grad)
                for each, tensor in arguments.items()
            }
            assert_whole(gradients(sharded), expected)


def check_learned_states(make_module, mesh) -> None:
    """A replicated h_0 and c_0 that are learned, inputs that are sharded over features, and parameters over rows."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    torch.manual_seed(0)
    module = make_module(4, 4, dtype=torch.float64)
    layers = isinstance(module, lltm._recurrent.Recurrent)
    input = torch.randn(*([STEPS] if layers else []), 4, 4).double()
    state = torch.randn(2, *([1] if layers else []), 4, 4).double().unbind()
    leaves = [tensor.clone().requires_grad_() for tensor in (input, *state)]

    def gradients(input, *state):
        output, _ = module(input, state)
        return torch.autograd.grad(output.sin().sum(), [input, *state, *module.parameters()])

    expected = gradients(*leaves)
    for of_input, of_parameters in itertools.product((input.dim() - 2, input.dim() - 1), (Replicate(), Shard(0))):
        for name, parameter in list(module.named_parameters()):
            whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            setattr(module, name, nn.Parameter(distribute_tensor(whole.detach(), mesh, [of_parameters])))
        placements = (Shard(of_input), Replicate(), Replicate())
        sharded = [
            distribute_tensor(tensor.detach(), mesh, [placement]).requires_grad_()
            for tensor, placement in zip(leaves, placements, strict=True)
        ]
        assert_whole(gradients(*sharded), expected)


def check_second_gradients(mesh) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    def second(input, weights):
        (first,) = torch.autograd.grad(lltm.ops.sequence(input, weights)[0].sum(), input, create_graph=True)
        return torch.autograd.grad(first.square().sum(), weights)

    input, weights = torch.randn(STEPS, 4, 3).double(), torch.randn(12, 7).double()
    sharded = distribute_tensor(input, mesh, [Shard(1)]), distribute_tensor(weights, mesh, [Replicate()])
    found, expected = (
        second(*(tensor.requires_grad_() for tensor in leaves)) for leaves in (sharded, (input, weights))
    )
    assert_whole(found, expected)


def check_messages(mesh) -> None:
    from torch.distributed.tensor import distribute_tensor

    input = distribute_tensor(torch.zeros(STEPS, 4, 3), mesh)
    with pytest.raises(RuntimeError, match="lltm::sequence: expected every tensor to be a DTensor .* weights is a Ten"):
        lltm.ops.sequence(input, torch.zeros(12, 7))
    with pytest.raises(RuntimeError, match=r"lltm::sequence: .*weights"):
        lltm.ops.sequence(input, distribute_tensor(torch.zeros(12, 9), mesh))


def check_data_parallel(make_module, rank) -> None:
    """Each process trains on its own rows, and the gradients are averaged."""
    rnn = make_module(3, 4, 2, bidirectional=True)
    input, lengths = torch.randn(STEPS, 4, 3), torch.tensor([5, 0, 3, 2])

    def loss(model, rows):
        return model(input[:, rows], None, lengths[rows])[0].square().mean()

    expected = torch.autograd.grad(loss(rnn, slice(None)), list(rnn.parameters()))
    parallel = nn.parallel.DistributedDataParallel(rnn)  # must live until backward has averaged the gradients
    loss(parallel, slice(2 * rank, 2 * rank + 2)).backward()
    torch.testing.assert_close([parameter.grad for parameter in rnn.parameters()], list(expected))


def check_fully_sharded(make_module, make_cell, mesh, rank) -> None:
    """FSDP2: each process holds half of every parameter, and trains on its own rows."""
    from torch.distributed.fsdp import fully_shard

    model = nn.ModuleList([make_module(3, 4, 2, bidirectional=True), make_cell(8, 3)])

    def loss(rows):
        output, _ = model[0](rows)
        return model[1](output[-1])[0].square().mean()

    input = torch.randn(STEPS, 4, 3)
    expected = torch.autograd.grad(loss(input), list(model.parameters()))
    for module in model:
        fully_shard(module, mesh=mesh)
    loss(input.chunk(2, dim=1)[rank]).backward()
    assert_whole([parameter.grad for parameter in model.parameters()], expected)


def check_initialization(mesh) -> None:
    """FSDP2's recipe, and a leak on weights of every placement. The random numbers of the shards are their own."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    def assert_leaks(weights, expected) -> None:
        weights = weights.detach().full_tensor()
        mean = weights[2 * len(weights) // 3 :].diagonal().mean()
        torch.testing.assert_close(mean, torch.tensor(-expected), rtol=0, atol=0.15)

    for make_module in (
        lambda: lltm.LLTM(3, 65, 2, leak=1.5, device="meta"),
        lambda: lltm.LLTMCell(3, 65, leak=1.5, device="meta"),
    ):
        for dim in (0, 1):
            module = make_module()
            fully_shard(module, mesh=mesh, shard_placement_fn=lambda p, dim=dim: Shard(dim if p.dim() == 2 else 0))
            module.to_empty(device="cpu")
            module.reset_parameters()
            for parameter in module.parameters():
                if parameter.dim() == 2:
                    assert_leaks(parameter, 1.5)
    rnn = lltm.LLTM(3, 65)
    for placement in (Replicate(), Shard(0), Shard(1)):
        rnn.weights_l0 = nn.Parameter(distribute_tensor(torch.empty(195, 68), mesh, [placement]))
        rnn.reset_parameters(leak=3.0)
        assert_leaks(rnn.weights_l0, 3.0)
        if placement == Shard(1):
            with pytest.raises(ValueError, match="there are no views of a DTensor whose columns are sharded"):
                lltm.split_weights(rnn.weights_l0)
        else:
            h_columns, _ = lltm.split_weights(rnn.weights_l0)
            with torch.no_grad():
                h_columns.zero_()
            assert not rnn.weights_l0.full_tensor()[:, :65].any()


def check_initialization_on_a_2d_mesh(mesh) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    rnn, bound = lltm.LLTM(3, 33), 33**-0.5
    for placements in itertools.product((Replicate(), Shard(0), Shard(1)), repeat=2):
        rnn.weights_l0 = nn.Parameter(distribute_tensor(torch.empty(99, 36), mesh, placements))
        rnn.reset_parameters(leak=3.0)
        assert rnn.weights_l0.placements == placements
        weights = rnn.weights_l0.detach().full_tensor()
        weights[66:].diagonal().add_(3.0)
        assert 0 < weights.abs().max() <= bound * (1 + 1e-5)
        if Shard(1) in placements:
            with pytest.raises(ValueError, match="no views of a DTensor whose columns are sharded"):
                lltm.split_weights(rnn.weights_l0)


def check_partial_parameters_are_refused(mesh) -> None:
    from torch.distributed.tensor import DTensor, Partial, Replicate

    for make_module, name in (
        (lambda: lltm.LLTM(3, 4), "weights_l0"),
        (lambda: lltm.LLTMCell(3, 4), "bias"),
        (lambda: lltm.LSTM(3, 4), "bias_hh_l0"),
    ):
        for placements in ((Replicate(), Partial()), (Partial("avg"), Replicate())):
            module = make_module()
            partial = DTensor.from_local(getattr(module, name).detach(), mesh, placements)
            setattr(module, name, nn.Parameter(partial))
            before = [parameter.detach().clone() for parameter in module.parameters()], torch.get_rng_state()
            with pytest.raises(RuntimeError, match=rf"reset_parameters: {name} is a DTensor .*Partial\(.*redistribute"):
                module.reset_parameters()
            assert torch.equal(torch.get_rng_state(), before[1])
            for found, expected in zip(module.parameters(), before[0], strict=True):
                assert torch.equal(*(getattr(tensor, "_local_tensor", tensor) for tensor in (found, expected)))
    with pytest.raises(ValueError, match="no views of a DTensor whose columns are sharded, or that is partial"):
        lltm.split_weights(DTensor.from_local(torch.zeros(12, 7), mesh, [Partial()] * 2))


def check_four(rank, file) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo", f"file://{file}", rank=rank, world_size=4)
    from torch.distributed.tensor import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2))
    check_initialization_on_a_2d_mesh(mesh)
    check_partial_parameters_are_refused(mesh)
    dist.destroy_process_group()
    os._exit(0)  # see check()


def check_states_fully_sharded(make_module, mesh) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    rnn = make_module(3, 4, 2)
    input = torch.randn(STEPS, 2, 3)
    expected = rnn.states(input)
    fully_shard(rnn, mesh=mesh)
    torch.testing.assert_close(rnn.states(input), expected)


def check(rank, file) -> None:
    """Runs in each process. test_import.py calls the functions in a single one."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", f"file://{file}", rank=rank, world_size=2)
    from torch.distributed.tensor import init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    for batch in (4, 3, 1):  # equal and unequal numbers of rows, and no rows in one process
        check_module(lltm.LLTM, mesh, batch)
        check_module(lltm.LSTM, mesh, batch)
    check_cell(mesh)
    check_cell(init_device_mesh("cpu", (1, 2)))
    check_operators(mesh)
    for operator in ("forward", "sequence", "lstm"):
        check_redistributed_leaves(operator, mesh)
    if torch.__version__ >= (2, 12):  # before that, DTensor cannot flatten steps and a sharded batch
        check_second_gradients(mesh)
        check_redistributed_leaves("backward", mesh)
    for make_module in (lltm.LLTM, lltm.LSTM, lltm.LLTMCell, lltm.LSTMCell):
        check_learned_states(make_module, mesh)
    check_messages(mesh)
    for make_module, make_cell in ((lltm.LLTM, lltm.LLTMCell), (lltm.LSTM, lltm.LSTMCell)):
        check_data_parallel(make_module, rank)
        check_fully_sharded(make_module, make_cell, mesh, rank)
        check_states_fully_sharded(make_module, mesh)
    torch.manual_seed(0)
    check_initialization(mesh)
    lltm._sharding.register()  # again
    dist.destroy_process_group()
    # Skips the interpreter's finalization, during which gloo's threads may still release tensors and abort the process
    # (github.com/pytorch/pytorch/pull/179291).
    os._exit(0)


needs_distributed = pytest.mark.skipif(not dist.is_available(), reason="PyTorch without torch.distributed")


@needs_distributed
def test_a_group_of_two(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    torch.multiprocessing.spawn(check, (tmp_path / "group",), nprocs=2)


@needs_distributed
@pytest.mark.release
def test_a_mesh_of_two_by_two(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    torch.multiprocessing.spawn(check_four, (tmp_path / "group",), nprocs=4)


@pytest.fixture
def on_two_gpus(device):
    """Two processes or replicas, each with a GPU of its own, or on the CPU."""
    if device.type == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("one GPU")


@needs_distributed
@pytest.mark.release  # test_a_group_of_two trains the same
@pytest.mark.usefixtures("on_two_gpus")
def test_the_page(device, tmp_path):
    """docs/several-gpus.md: its program, started by its command, with gloo or NCCL."""
    (command,) = blocks(PAGE, "sh")
    (tmp_path / "train.py").write_text("".join(block.text for block in blocks(PAGE, "python")))
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device.type == "cpu" else {}
    run("sh", "-c", command.text, cwd=tmp_path, OMP_NUM_THREADS=1, **hidden, **with_lltm())


@pytest.mark.usefixtures("on_two_gpus")
@pytest.mark.parametrize(
    "make", [lltm.LLTMCell, lltm.LSTMCell, lltm.LLTM, lltm.LSTM, partial(lltm.LLTM, num_layers=2, bidirectional=True)]
)
def test_data_parallel(device, make):
    """nn.DataParallel replicates a module and splits the batch. On the CPU, where it does neither, the replica of a
    module is tested, whose parameters are plain tensors."""
    module = make(3, 4, device=device, dtype=torch.float64)
    dim = 0 if isinstance(module, lltm.LLTMCell | lltm.LSTMCell) else 1
    input = torch.randn(5, 4, 3, device=device, dtype=torch.float64)[0 if dim == 0 else slice(None)]
    parallel = nn.DataParallel(module, dim=dim) if device.type == "cuda" else replica_of(module)
    results, expected = parallel(input), module(input)
    torch.testing.assert_close(results, expected)
    found, gradients = (torch.autograd.grad(r[0].sin().sum(), list(module.parameters())) for r in (results, expected))
    torch.testing.assert_close(found, gradients)
