"""Layers made of the operators. Initialization and repr are those of the corresponding modules of torch.nn."""

import math

import torch
from torch import Tensor


class Linear(torch.nn.Module):
    """y = input @ weight.T + bias, like :class:`torch.nn.Linear`, for two-dimensional inputs.

    Args:
        in_features, out_features: the size of the last dimension of the input and of the output.
        bias: if ``False``, the layer has no bias. Default: ``True``.
        device, dtype: the device and dtype of the parameters.

    Shapes: input (N, in_features), output (N, out_features).

    Attributes:
        weight: (out_features, in_features), initialized uniformly in +-1/sqrt(in_features).
        bias: (out_features), initialized in the same range, or None.
    """

    __constants__ = ["in_features", "out_features"]

    in_features: int
    out_features: int
    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = torch.nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        if bias:
            self.bias = torch.nn.Parameter(torch.empty(out_features, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        for parameter in self.parameters():
            torch.nn.init.uniform_(parameter, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        return torch.ops.example_ops.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class FusedConvBatchNorm2D(torch.nn.Module):
    """A valid convolution with stride 1 and no bias, followed by batch norm without affine parameters.

    The batch norm is (y - mean) / (sqrt(unbiased var) + eps), with the statistics of the current batch. Between forward
    and backward the layer keeps its input, its weight and two numbers per channel. There are no running statistics: the
    statistics of the batch are used in evaluation, too.

    Args:
        in_channels, out_channels, kernel_size: parameters of the convolution. The kernel is square.
        eps: added to the standard deviation, outside of the square root.
        device, dtype: the device and dtype of the weight.

    Shapes: input (N, in_channels, H, W), output (N, out_channels, H - kernel_size + 1, W - kernel_size + 1).

    Attributes:
        weight: (out_channels, in_channels, kernel_size, kernel_size), initialized uniformly in
            +-1/sqrt(in_channels * kernel_size^2).
    """

    __constants__ = ["in_channels", "out_channels", "kernel_size", "eps"]

    in_channels: int
    out_channels: int
    kernel_size: int
    eps: float
    weight: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        eps: float = 1e-3,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = kernel_size
        self.eps = eps
        shape = (out_channels, in_channels, kernel_size, kernel_size)
        self.weight = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.in_channels * self.kernel_size**2)
        torch.nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        return torch.ops.example_ops.conv2d_batch_norm(input, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, eps={self.eps}"
