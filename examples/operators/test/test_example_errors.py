"""Invalid arguments raise; messages name the operator, the argument, what was expected and what was received."""

import re

import pytest
import torch

ops = torch.ops.example_ops


def images(*shape, **options):
    return torch.ones(shape or (2, 3, 5, 5), **options)


X = torch.ones(2, 3)
W = torch.ones(4, 3)
IMAGES = images()
KERNEL = torch.ones(4, 3, 2, 2)
SUPPORTED = "of dtype float64, float32, float16 or bfloat16"

ERRORS = {
    "round_ste": [
        ((None,), "expected x to be a tensor, got None"),
        ((X.int(),), f"expected x {SUPPORTED}, got int32"),
        ((X.bool(),), f"expected x {SUPPORTED}, got bool"),
        ((X.to(torch.complex64),), f"expected x {SUPPORTED}, got complex64"),
    ],
    "elementwise_mult": [
        ((X, None), "expected b to be a tensor, got None"),
        ((None, X), "expected a to be a tensor, got None"),
        ((X.int(), X.int()), f"expected a {SUPPORTED}, got int32"),
        ((X, X.double()), "expected b of a's dtype float32, got float64"),
        ((X, X.to("meta")), "expected b on a's device cpu, got meta"),
        ((X, torch.ones(3)), "expected b of a's shape [2, 3], got [3]"),
        ((X, torch.ones(2, 1)), "expected b of a's shape [2, 3], got [2, 1]"),
    ],
    "mul_constant": [
        ((None, 1.0), "expected x to be a tensor, got None"),
        ((X.long(), 1.0), f"expected x {SUPPORTED}, got int64"),
    ],
    "cube": [
        ((None,), "expected x to be a tensor, got None"),
        ((X.int(),), f"expected x {SUPPORTED}, got int32"),
    ],
    "linear": [
        ((None, W, None), "expected input to be a tensor, got None"),
        ((X, None, None), "expected weight to be a tensor, got None"),
        ((X.int(), W.int(), None), f"expected input {SUPPORTED}, got int32"),
        ((X, W.double(), None), "expected weight of input's dtype float32, got float64"),
        ((X, W.to("meta"), None), "expected weight on input's device cpu, got meta"),
        ((torch.ones(3), W, None), "expected input of shape [batch, in], got [3]"),
        ((X, torch.ones(3), None), "expected weight of shape [out, in], got [3]"),
        ((X, torch.ones(4, 2), None), "expected weight of shape [out, in], its size 1 being 3, got [4, 2]"),
        ((X, W, torch.ones(4).double()), "expected bias of input's dtype float32, got float64"),
        ((X, W, torch.ones(1, 4)), "expected bias of shape [out], got [1, 4]"),
        ((X, W, torch.ones(3)), "expected bias of shape [out], its size 0 being 4, got [3]"),
    ],
    "conv2d": [
        ((None, KERNEL), "expected input to be a tensor, got None"),
        ((IMAGES, None), "expected weight to be a tensor, got None"),
        ((IMAGES.int(), KERNEL.int()), f"expected input {SUPPORTED}, got int32"),
        ((IMAGES, KERNEL.half()), "expected weight of input's dtype float32, got float16"),
        ((IMAGES, KERNEL.to("meta")), "expected weight on input's device cpu, got meta"),
        ((IMAGES[0], KERNEL), "expected input of shape [batch, channels, height, width], got [3, 5, 5]"),
        (
            (IMAGES, KERNEL[0]),
            "expected weight of shape [out_channels, channels, kernel_height, kernel_width], got [3, 2, 2]",
        ),
        ((IMAGES, torch.ones(4, 2, 2, 2)), "its size 1 being 3, got [4, 2, 2, 2]"),
        (
            (IMAGES, torch.ones(4, 3, 6, 2)),
            "whose kernel is not empty and fits into the image of size [2, 3, 5, 5], got [4, 3, 6, 2]",
        ),
        (
            (IMAGES, torch.ones(4, 3, 2, 0)),
            "whose kernel is not empty and fits into the image of size [2, 3, 5, 5], got [4, 3, 2, 0]",
        ),
    ],
    "batch_norm2d": [
        ((None,), "expected input to be a tensor, got None"),
        ((IMAGES.int(),), f"expected input {SUPPORTED}, got int32"),
        ((IMAGES[0],), "expected input of shape [batch, channels, height, width], got [3, 5, 5]"),
        (
            (images(1, 3, 1, 1),),
            "expected more than one value per channel, whose variance is asked for, got images of shape [1, 3, 1, 1]",
        ),
    ],
}
ERRORS["conv2d_batch_norm"] = [
    *ERRORS["conv2d"],
    (
        (images(1, 3, 2, 2), KERNEL),
        "expected more than one value per channel, whose variance is asked for, got images of shape [1, 4, 1, 1]",
    ),
]
CASES = [(name, arguments, message) for name, errors in ERRORS.items() for arguments, message in errors]


@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "requires_grad"])
@pytest.mark.parametrize("name, arguments, message", CASES, ids=[f"{name}-{i}" for i, (name, *_) in enumerate(CASES)])
def test_message(name, arguments, message, requires_grad):
    def prepare(tensor):
        differentiable = isinstance(tensor, torch.Tensor) and (tensor.is_floating_point() or tensor.is_complex())
        return tensor.detach().requires_grad_() if differentiable and requires_grad else tensor

    with pytest.raises(RuntimeError, match=re.escape(f"example_ops::{name}: ") + ".*" + re.escape(message)):
        getattr(ops, name)(*map(prepare, arguments))


@pytest.mark.parametrize("name, arguments, message", CASES, ids=[f"{name}-{i}" for i, (name, *_) in enumerate(CASES)])
def test_meta_kernel_says_the_same(name, arguments, message):
    """The errors are the same under torch.compile, where only the Meta kernel runs."""
    if "device" in message:
        pytest.skip("all arguments are on one device here")
    if "more than one value" in message:
        pytest.skip("looked at where there are values")
    on_meta = [x.to("meta") if isinstance(x, torch.Tensor) else x for x in arguments]
    with pytest.raises(RuntimeError, match=re.escape(message)):
        getattr(ops, name)(*on_meta)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_two_devices(device):
    if device.type == "cpu":
        pytest.skip("the GPU is meant")
    with pytest.raises(RuntimeError, match="expected b on a's device cuda:0, got cpu"):
        ops.elementwise_mult(X.cuda(), X)


def test_sparse_is_for_the_dispatcher_to_refuse():
    with pytest.raises(NotImplementedError, match="Could not run 'example_ops::round_ste'"):
        ops.round_ste(X.to_sparse())
