"""Calls of the cell: lltm::forward, lltm::backward, and gradients by autograd."""

import dataclasses
import functools

import torch
from torch import Tensor

from lltm_testing import bounds
from lltm_testing.bounds import Bounded
from lltm_testing.random_calls.calls import Call, Results, differentiate, lay_out, modes, seed_generator
from lltm_testing.random_calls.cases import INCOMING, Case
from lltm_testing.reference import NAMES, Arguments, forward, make_arguments, precision_on

GRADIENT_NAMES = tuple(f"d_{name}" for name in NAMES)


def make_cell_arguments(case: Case) -> Arguments:
    seed_generator(case)
    arguments = make_arguments(case.sizes, case.dtype, case.device, case.bias)
    if case.scale != 1:
        arguments = arguments._replace(weights=arguments.weights * case.scale)
    return Arguments(*(lay_out(case, name, tensor) for name, tensor in arguments._asdict().items()))


def make_incoming(case: Case, dtype: torch.dtype) -> list[Tensor | None]:
    """The gradients of new_h and new_cell."""
    batch, _, state_size = case.sizes
    values = [torch.randn(batch, state_size, dtype=torch.float64, device=case.device).to(dtype) for _ in INCOMING]
    return [
        None if name in case.absent else lay_out(case, name, value)
        for name, value in zip(INCOMING, values, strict=True)
    ]


def requiring_grad(case: Case, arguments: Arguments) -> Arguments:
    """Leaves that share the tensors' memory. Those selected by the mask require gradients."""
    return Arguments(
        *(
            tensor if tensor is None else tensor.detach().requires_grad_(wanted)
            for tensor, wanted in zip(arguments, case.mask, strict=True)
        )
    )


def bounded_arguments(case: Case, arguments: Arguments) -> Arguments:
    """The arguments as the kernels receive them, after autocast's casts."""
    exact = precision_on(case.device, case.arithmetic).exact
    return arguments.map(lambda tensor: exact(tensor.to(case.arithmetic)))


def prepare_forward(case: Case) -> Call:
    arguments = requiring_grad(case, make_cell_arguments(case))

    def run() -> Results:
        with modes(case):
            return torch.ops.lltm.forward(*arguments)

    return Call(
        names=("new_h", "new_cell", "gates"),
        dtypes=(case.arithmetic,) * 3,
        arguments=arguments,
        run=run,
        expected=lambda: bounds.LLTM.forward(*bounded_arguments(case, arguments)),
    )


def prepare_backward(case: Case) -> Call:
    """lltm::backward itself, which autocast does not affect. gates and new_cell come from forward."""
    arguments = make_cell_arguments(case)
    _, new_cell, gates = torch.ops.lltm.forward(*arguments)
    new_cell, gates = lay_out(case, "new_cell", new_cell), lay_out(case, "gates", gates)
    grads = make_incoming(case, case.dtype)
    given = (*grads, new_cell, gates, *arguments[:4])

    def run() -> Results:
        with modes(case):
            return torch.ops.lltm.backward(*given, case.mask)

    def expected() -> list[Bounded | None]:
        exact = precision_on(case.device, case.dtype).exact
        tensors = (*grads, new_cell, gates, arguments.input, arguments.weights, arguments.old_h)
        gradients = bounds.LLTM.backward(*map(exact, tensors))
        return [gradient if wanted else None for gradient, wanted in zip(gradients, case.mask, strict=True)]

    return Call(names=GRADIENT_NAMES, dtypes=(case.dtype,) * 5, arguments=given, run=run, expected=expected)


def prepare_autograd(case: Case) -> Call:
    """lltm::forward, and its gradients by autograd."""
    arguments = requiring_grad(case, make_cell_arguments(case))
    grads = make_incoming(case, case.arithmetic)

    def run() -> Results:
        with modes(case, "enabled"):
            results = torch.ops.lltm.forward(*arguments)
        return (*(result.detach() for result in results), *differentiate(results[:2], grads, arguments))

    def expected() -> list[Bounded | None]:
        input, weights, bias, old_h, _ = bounded = bounded_arguments(case, arguments)
        new_h, new_cell, gates = bounds.LLTM.forward(*bounded)
        exact = precision_on(case.device, case.arithmetic).exact
        gradients = bounds.LLTM.backward(
            exact(grads[0]), exact(grads[1]), new_cell.stored(), gates.stored(), input, weights, old_h
        )
        wanted = [leaf is not None and leaf.requires_grad and len(case.absent) < 2 for leaf in arguments]
        gradients = [gradient.cast(case.dtype) for gradient in gradients]
        return [new_h, new_cell, gates, *(g if want else None for g, want in zip(gradients, wanted, strict=True))]

    return Call(
        names=("new_h", "new_cell", "gates", *GRADIENT_NAMES),
        dtypes=(case.arithmetic,) * 3 + (case.dtype,) * 5,
        arguments=(*arguments, *grads),
        run=run,
        expected=expected,
    )


def elu_across(places: Tensor):
    """ELU, but by its other branch in these places."""

    def elu(z: Tensor) -> Tensor:
        return torch.where((z > 0) ^ places, z, torch.expm1(z.clamp(max=1.0)))

    return elu


def gradients_of_gradients(step, arguments, grads, directions) -> Results:
    """With respect to the arguments and the incoming gradients."""
    leaves = (*arguments, *grads)
    with torch.enable_grad():
        first = differentiate(step(*arguments)[:2], grads, arguments, create_graph=True)
        found = differentiate(first, directions, leaves)
    return [
        torch.zeros_like(leaf) if gradient is None and leaf is not None and leaf.requires_grad else gradient
        for leaf, gradient in zip(leaves, found, strict=True)
    ]


def prepare_double_backward(case: Case) -> Call:
    arguments = requiring_grad(case, make_cell_arguments(case))
    grads = [grad if grad is None else grad.detach().requires_grad_() for grad in make_incoming(case, case.dtype)]
    directions = [None if tensor is None else torch.randn_like(tensor) for tensor in arguments]

    def exact(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.detach().double().requires_grad_(tensor.requires_grad)

    def run() -> Results:
        return gradients_of_gradients(torch.ops.lltm.forward, arguments, grads, directions)

    def expected() -> list[Bounded | None]:
        """Autograd of the formula in float64. The gradients are computed by ATen's operators and can be poorly
        conditioned, so errors are measured relative to the largest of all gradients. ELU's second derivative jumps at
        0, which the z of each candidate may cross by a rounding error."""
        precision = precision_on(case.device, case.dtype)
        batch, input_features, state_size = case.sizes
        terms = max(batch, 3 * state_size, state_size + input_features)
        scale = max(1.0, case.scale)
        units = (16 + 4 * terms**0.5) * scale
        # z is a sum of products with a size of a few units, and may be rounded before the bias is added.
        largest_bias = arguments.bias.detach().abs().max().double() if case.bias and arguments.bias.numel() else 0.0
        rounding_of_z = precision.storage_unit * largest_bias
        rounding_of_z = rounding_of_z + 4 * scale * (64 * precision.unit + precision.product_unit)
        tensors = [list(map(exact, tensors)) for tensors in (arguments, grads, directions)]

        def by(elu) -> Results:
            return gradients_of_gradients(functools.partial(forward, elu=elu), *tensors)

        values = by(torch.nn.functional.elu)
        largest = max((value.abs().max() for value in values if value is not None and value.numel()), default=0.0)
        error = units * (precision.storage_unit + precision.product_unit) * (1.0 + largest)
        results = [None if value is None else Bounded(value, error, precision) for value in values]
        z_g = forward(*tensors[0])[2].detach().chunk(3, dim=-1)[2]
        for place in (z_g.abs() <= rounding_of_z).nonzero():
            places = torch.zeros_like(z_g, dtype=torch.bool)
            places[tuple(place)] = True
            results = [
                result and dataclasses.replace(result, error=result.error + (other - result.value).abs())
                for result, other in zip(results, by(elu_across(places)), strict=True)
            ]
        return results

    return Call(
        names=(*GRADIENT_NAMES, *(f"d_{name}" for name in INCOMING)),
        dtypes=(case.dtype,) * 7,
        arguments=(*arguments, *grads, *directions),
        run=run,
        expected=expected,
        may_share_storage=True,  # in the formula, d_old_h and d_input are slices of one product
        # On CUDA, autograd runs the formula in a separate thread, and accumulates gradients from several nodes in the
        # order of their sequence numbers, which each thread counts separately.
        has_same_bits=case.device == "cpu",
    )
