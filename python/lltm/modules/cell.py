"""LLTMCell, the recurrent cell as a module."""

import operator
from typing import Any

import torch
from torch import Tensor

from .. import _checks, _initialization, _leaf

__all__ = ["LLTMCell", "split_weights"]


def split_weights(weights: Tensor) -> tuple[Tensor, Tensor]:
    """The columns of ``weights`` that multiply the state h, (3H, H), and the input x, (3H, I). Both are views.

    They correspond to ``weight_hh`` and ``weight_ih`` of :class:`torch.nn.LSTM`. Takes the weights, (3H, H+I), of an
    :class:`LLTMCell` or of a layer of :class:`LLTM`. Their rows are those of the input gate, the output gate and the
    candidate, H each: ``weights.chunk(3)``, as ``bias.chunk(3)``.

    Raises ValueError if weights do not have this shape, (3H, H+I), for any H of 1 or more and I of 0 or more, or if
    they are a DTensor whose columns are sharded or that is partial, of which there are no views.

    Example::

        >>> rnn = lltm.LLTM(10, 20)
        >>> weight_hh, weight_ih = lltm.split_weights(rnn.weights_l0)
        >>> _ = torch.nn.init.orthogonal_(weight_hh)  # writes to rnn.weights_l0
        >>> weight_hh.shape, weight_ih.shape
        (torch.Size([60, 20]), torch.Size([60, 10]))
    """
    state_size = weights.size(0) // 3 if weights.dim() == 2 else 0
    if state_size == 0 or weights.size(0) % 3 != 0 or weights.size(1) < state_size:
        raise ValueError(f"split_weights: expected weights of shape (3H, H+I), got {list(weights.shape)}")
    if _initialization.shards_columns(weights):
        raise ValueError("split_weights: there are no views of a DTensor whose columns are sharded, or that is partial")
    return weights[:, :state_size], weights[:, state_size:]


class LLTMCell(_leaf.Leaf):
    """A long-long-term-memory cell: an LSTM cell without a forget gate, with an ELU for the candidate.

    This is the cell of PyTorch's tutorial on C++ extensions; checkpoints of the tutorial's module can be loaded with
    ``load_state_dict``. It computes::

        z_i, z_o, z_g = ([h, x] @ weights.T + bias).chunk(3)
        new_c = c + ELU(z_g) * sigmoid(z_i)
        new_h = tanh(new_c) * sigmoid(z_o)

    It can replace :class:`torch.nn.LSTMCell`, whose names for the arguments are accepted, too.

    Args:
        input_features: the number of features of the input, I; may be 0. Also called input_size.
        state_size: the number of features of the state, H. Also called hidden_size.
        bias: if ``False``, the cell has no bias. Default: ``True``.
        device, dtype: the device and dtype of the parameters.
        leak: what :meth:`reset_parameters` subtracts from the weight of each h in the candidate of its own cell.
            Default: 0, as in the tutorial. That of :class:`LLTM` is 2, with which most models learn better.

    Inputs: input, state
        * **input**: (N, I), or (I) for a single example.
        * **state**: the pair (old_h, old_cell), each (N, H), or (H) for a single example. Default: zeros. Also called
          hx.

    Outputs: (new_h, new_cell)
        * the next state, both tensors in the shape of old_h.

    Attributes:
        weights: (3H, H+I). Rows in the order input gate, output gate, candidate; columns in the order h, x (see
            :func:`split_weights`).
        bias: (3H), or None.
        input_features, state_size, and input_size, hidden_size: I and H.

    Raises:
        TypeError: the constructor gets a size under both names or neither, state is given under both names, or is not a
            tuple or list of tensors.
        ValueError: the constructor gets a negative or empty size; input or state has neither 1 nor 2 dimensions.
        RuntimeError: any other mismatch of shape, dtype or device.

    Example::

        >>> cell = lltm.LLTMCell(32, 128)
        >>> state = None
        >>> for x in torch.randn(8, 16, 32):  # 8 steps of a batch of 16
        ...     state = cell(x, state)
        >>> new_h, new_cell = state
    """

    __constants__ = ["input_features", "state_size", "input_size", "hidden_size"]
    __jit_unused_properties__ = ["input_size", "hidden_size"]  # constants to TorchScript

    input_features: int
    state_size: int
    leak: float
    weights: Tensor
    bias: Tensor | None

    def __init__(
        self,
        input_features: int | None = None,
        state_size: int | None = None,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        input_size: int | None = None,
        hidden_size: int | None = None,
        leak: float = 0.0,
    ) -> None:
        super().__init__()
        input_features = _either(input_features=input_features, input_size=input_size)
        state_size = _either(state_size=state_size, hidden_size=hidden_size)
        if input_features < 0 or state_size < 1:
            raise ValueError(
                "LLTMCell: expected input_features of 0 or more and state_size of 1 or more, "
                f"got {input_features} and {state_size}"
            )
        self.input_features = operator.index(input_features)  # a number of NumPy neither compiles nor scripts
        self.state_size = operator.index(state_size)
        self.leak = float(leak)
        shape = (3 * state_size, state_size + input_features)
        self.weights = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        if bias:
            self.bias = torch.nn.Parameter(torch.empty(3 * state_size, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("leak", 0.0)  # pickled by a version of lltm without one

    @property
    def input_size(self) -> int:
        return self.input_features

    @property
    def hidden_size(self) -> int:
        return self.state_size

    def reset_parameters(self, leak: float | None = None) -> None:
        """Reinitialize the parameters uniformly in +-1/sqrt(state_size), and subtract the leak.

        ``leak``, by default that of the constructor, is that of :meth:`LLTM.reset_parameters`, which also says what it
        raises.
        """
        _initialization.reset_parameters(self, ["weights"], self.state_size, self.leak if leak is None else leak)

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing, unexpected, errors) -> None:  # type: ignore[no-untyped-def]
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, errors)
        _checks.refuse_lstm(self, state_dict, prefix, errors)

    def forward(
        self, input: Tensor, state: tuple[Tensor, Tensor] | None = None, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute one step: the next state (new_h, new_cell) from ``input`` and ``state``. The class describes them."""
        if input.dim() != 1 and input.dim() != 2:
            raise ValueError(
                "LLTMCell: expected input of 2 dimensions [batch, input_features], or of 1 for a single example, "
                f"got {input.dim()}"
            )
        if not torch.jit.is_tracing() and input.size(-1) != self.input_features:
            raise RuntimeError(f"LLTMCell: expected input of {self.input_features} features, got {input.size(-1)}")
        if hx is not None:
            if state is not None:
                raise TypeError("LLTMCell: expected either state or hx, got both")
            state = hx
        batched = input.dim() == 2
        if not batched:
            input = input.unsqueeze(0)
        if state is None:
            old_h = input.new_zeros(input.size(0), self.state_size)
            old_cell = old_h
        else:
            if not torch.jit.is_scripting():
                _checks.check_cell_pair("LLTMCell", "state", "(old_h, old_cell)", state)
            old_h, old_cell = state
            _check_dimensions(old_h, old_cell, 2 if batched else 1)
            if not batched:
                old_h = old_h.unsqueeze(0)
                old_cell = old_cell.unsqueeze(0)
        new_h, new_cell, _ = torch.ops.lltm.forward(input, self.weights, self.bias, old_h, old_cell)
        if not batched:
            return new_h.squeeze(0), new_cell.squeeze(0)
        return new_h, new_cell

    def extra_repr(self) -> str:
        leak = "" if self.leak == 0 else f", leak={self.leak}"
        return f"input_features={self.input_features}, state_size={self.state_size}, bias={self.bias is not None}{leak}"


def _either(**spellings: int | None) -> int:
    """The value of an argument with two names, exactly one of which must be given."""
    given = [value for value in spellings.values() if value is not None]
    if len(given) != 1:
        raise TypeError(f"LLTMCell: expected either {' or '.join(spellings)}, got {'both' if given else 'neither'}")
    return given[0]


def _check_dimensions(old_h: Tensor, old_cell: Tensor, expected: int) -> None:
    if old_h.dim() == expected and old_cell.dim() == expected:
        return
    message = f"LLTMCell: expected old_h and old_cell with as many dimensions as input ({expected}), "
    message += f"got {old_h.dim()} and {old_cell.dim()}"
    if old_h.dim() in (1, 2) and old_cell.dim() in (1, 2):
        raise RuntimeError(message)
    raise ValueError(message)
