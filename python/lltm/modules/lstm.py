"""LSTM and LSTMCell, nn.LSTM's own cell on this library's kernels."""

import warnings
from typing import overload

import torch
from torch import Tensor, nn
from torch.nn.modules import rnn as torch_rnn  # whose classes stay while a program patches torch.nn.LSTM
from torch.nn.utils.rnn import PackedSequence

from .. import _checks, _initialization, _recurrent

__all__ = ["LSTM", "LSTMCell"]


class LSTM(_recurrent.LayersOfTorch):
    """Layers of LSTM cells over whole sequences, in one direction or both, in place of :class:`torch.nn.LSTM`.

    Constructor, parameters, initialization after the same seed, inputs, outputs and checkpoints are those of nn.LSTM: a
    trained model only has to change the name of the class, or call :func:`convert_lstm`. The results are nn.LSTM's, to
    rounding. Each layer and direction is one call of ``torch.ops.lltm.lstm``, which computes for every step::

        z_i, z_f, z_g, z_o = (x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh).chunk(4)
        c = sigmoid(z_f) * c + sigmoid(z_i) * tanh(z_g)
        h = sigmoid(z_o) * tanh(c)

    Source of the formula: Hochreiter and Schmidhuber, Long Short-Term Memory, 1997, with the forget gate of Gers,
    Schmidhuber and Cummins, 2000, as nn.LSTM has it.

    Beyond nn.LSTM, it takes lengths and resets, has :meth:`states`, runs in ``torch.vmap``, is differentiable twice on
    every device, and compiles in one graph. Two differences: a float32 c_0 beside 16-bit inputs gives a float32 c_n,
    also under autocast; and a sequence may have no steps.

    Args:
        input_size: the number of features of the input, I.
        hidden_size: the number of features of the state, H.
        num_layers: the number of layers, L. Each layer after the first takes the outputs of the previous one.
        bias: if ``False``, the layers have no biases. Default: ``True``.
        batch_first: if ``True``, input, output and reset have the batch before the steps. Does not apply to the states.
        dropout: during training, the probability of zeroing an element of the output of each layer but the last.
        bidirectional: if ``True``, a second direction runs each sequence from its end. D is then 2, otherwise 1.
        proj_size: must be 0; nn.LSTM has projections.
        device, dtype: the device and dtype of the parameters.

    Inputs: input, hx, lengths, reset, for T steps and a batch of N
        * **input**: (T, N, I), or (N, T, I) with ``batch_first``; (T, I) for a single sequence; or a PackedSequence. In
          the parameters' dtype: float64, float32, float16 or bfloat16.
        * **hx**: the pair (h_0, c_0), each (D * L, N, H), or (D * L, H) for a single sequence, in input's dtype; c_0
          may be float32 if the input is 16-bit. Default: zeros.
        * **lengths**: (N), int64 or int32, on input's device; (1) or () for a single sequence: the number of steps in
          each row. Values beyond a row's length are not read, and the output there is zero. Not allowed with a
          PackedSequence.
        * **reset**: (T, N), bool, on input's device; (N, T) with ``batch_first``, (T) for a single sequence: where
          true, a new episode begins with this step, from a state of zeros. :class:`LLTM` says more.

    Outputs: output, (h_n, c_n)
        * **output**: the outputs of the last layer: (T, N, D * H), (N, T, D * H), (T, D * H), or a PackedSequence, like
          the input.
        * **h_n**, **c_n**: (D * L, N, H), or (D * L, H): the state after the last step of each layer and, within a
          layer, of each direction.

    Attributes:
        weight_ih_l[k], weight_ih_l[k]_reverse: (4H, I) for the first layer, (4H, D * H) for the others. Rows in the
            order input gate, forget gate, candidate, output gate.
        weight_hh_l[k], weight_hh_l[k]_reverse: (4H, H).
        bias_ih_l[k], bias_hh_l[k], bias_ih_l[k]_reverse, bias_hh_l[k]_reverse: (4H); absent with ``bias=False``.
            Their sum is rounded once, in their dtype.
            All parameters are initialized uniformly in +-1/sqrt(H).

    Raises:
        NotImplementedError: proj_size is not 0.
        TypeError, ValueError: the constructor's arguments are invalid, input has the wrong number of dimensions or not
            the parameters' dtype, lengths or reset is not a tensor, or lengths is given together with a PackedSequence.
        RuntimeError: any other mismatch of shape, dtype or device.

    Example::

        >>> theirs = torch.nn.LSTM(10, 20, num_layers=2)
        >>> rnn = lltm.LSTM(10, 20, num_layers=2)
        >>> rnn.load_state_dict(theirs.state_dict())
        <All keys matched successfully>
        >>> input = torch.randn(5, 3, 10)  # 5 steps of a batch of 3
        >>> torch.allclose(rnn(input)[0], theirs(input)[0], atol=1e-6)
        True
        >>> output, (h_n, c_n) = rnn(input, lengths=torch.tensor([5, 2, 0]))
    """

    _kind = "LSTM"
    _gates = 4
    _layer_parameters: list[Tensor]  # again, because TorchScript reads the annotations of one class

    mode = "LSTM"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if proj_size != 0 and type(self) is LSTM is nn.LSTM:  # the program asks for PyTorch's
            warnings.warn(
                f"LSTM: there are no projections, so proj_size={proj_size} gives PyTorch's nn.LSTM, though "
                "torch.nn.LSTM is patched",
                stacklevel=2,
            )
            self.__class__ = torch_rnn.LSTM  # type: ignore[assignment]
            self.__init__(  # type: ignore[misc]
                input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype
            )
            return
        super().__init__()
        self._set_up(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialize the parameters uniformly in +-1/sqrt(hidden_size), as nn.LSTM does after the same seed."""
        _initialization.uniform(self, self.hidden_size)

    def to_torch(self) -> nn.LSTM:
        """A new nn.LSTM with the same Parameters and training mode, for what only takes that class, such as
        ``torch.ao.quantization.quantize_dynamic``. This module stays as it is.

        Raises:
            RuntimeError: weights are computed from other parameters, by a hook or by a parametrization.
        """
        module = torch_rnn.LSTM(
            self.input_size,
            self.hidden_size,
            self.num_layers,
            self.bias,
            self.batch_first,
            self.dropout,
            self.bidirectional,
            device="meta",
        )
        share_parameters(self, module)
        module.flatten_parameters()
        return module

    @overload
    @_recurrent.overload_in_scripts
    def forward(
        self,
        input: Tensor,
        hx: tuple[Tensor, Tensor] | None = None,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
        return_states: bool = False,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        pass

    @overload
    @_recurrent.overload_in_scripts
    def forward(
        self,
        input: PackedSequence,
        hx: tuple[Tensor, Tensor] | None = None,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
        return_states: bool = False,
    ) -> tuple[PackedSequence, tuple[Tensor, Tensor]]:
        pass

    def forward(self, input, hx=None, lengths=None, reset=None, return_states=False):  # type: ignore[no-untyped-def]
        """Run all layers over ``input``, from the state ``hx``. Returns output, (h_n, c_n).

        The class describes the arguments, the results and the errors. With ``return_states``, which TorchScript
        refuses, returns what :meth:`states` does.
        """
        if torch.jit.is_scripting():
            if return_states:
                raise RuntimeError("LSTM: in TorchScript, results cannot depend on return_states: call states()")
        elif return_states:
            if isinstance(input, PackedSequence):
                return self._packed_states(input, hx, lengths, reset)
            return self._padded_states(input, hx, lengths, reset)
        if isinstance(input, PackedSequence):
            output, h_n, c_n, _ = self._run_packed(input, hx, lengths, reset, False)
            return _recurrent.like(input, output), (h_n, c_n)
        else:
            output, h_n, c_n, _ = self._run_padded(input, hx, lengths, reset, False)
            return output, (h_n, c_n)

    @overload
    @_recurrent.overload_in_scripts
    def states(
        self,
        input: Tensor,
        hx: tuple[Tensor, Tensor] | None = None,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        pass

    @overload
    @_recurrent.overload_in_scripts
    def states(
        self,
        input: PackedSequence,
        hx: tuple[Tensor, Tensor] | None = None,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> tuple[PackedSequence, tuple[Tensor, Tensor], tuple[PackedSequence, PackedSequence]]:
        pass

    def states(self, input, hx=None, lengths=None, reset=None):  # type: ignore[no-untyped-def]
        """Run all layers over ``input``, and return the state after every step, too, as :meth:`LLTM.states` does."""
        if not torch.jit.is_scripting():
            return self(input, hx, lengths, reset, return_states=True)
        elif isinstance(input, PackedSequence):
            return self._packed_states(input, hx, lengths, reset)
        else:
            return self._padded_states(input, hx, lengths, reset)

    def _run_layers(
        self,
        input: Tensor,
        hx: tuple[Tensor, Tensor] | None,
        lengths: Tensor | None,
        reset: Tensor | None,
        batch_sizes: Tensor | None,
        sorted_indices: Tensor | None,
        unsorted_indices: Tensor | None,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        parameters = self._read_parameters()
        self._check_dtype(input, parameters[0])
        h0: Tensor | None = None
        c0: Tensor | None = None
        if hx is not None:
            h0, c0 = hx
        dropout = self.dropout if self._drops and self.training else 0.0
        layers = torch.ops.lltm.lstm_layers
        if not torch.jit.is_scripting():
            layers = _recurrent.outside_of_exports(layers)
        return layers(
            input, parameters, h0, c0, lengths, reset, batch_sizes, sorted_indices, unsorted_indices, self.bias,
            self.batch_first, dropout, self.bidirectional, keep,
        )  # fmt: skip


class LSTMCell(_recurrent.CellOfTorch, nn.LSTMCell):
    """One step of nn.LSTM's cell, in place of :class:`torch.nn.LSTMCell`. It runs as a sequence of one step.

    Constructor, parameters, initialization and checkpoints are those of nn.LSTMCell. Beyond it, this cell runs in
    ``torch.vmap``, and is differentiable twice on every device.

    Args:
        input_size: the number of features of the input, I.
        hidden_size: the number of features of the state, H.
        bias: if ``False``, the cell has no biases. Default: ``True``.
        device, dtype: the device and dtype of the parameters.

    Inputs: input, hx
        * **input**: (N, I), or (I) for a single example.
        * **hx**: the pair (h, c), each (N, H), or (H) for a single example. Default: zeros.

    Outputs: (h, c)
        * the next state, both tensors (N, H), or (H).

    Raises:
        TypeError: hx is not a tuple or list of tensors.
        ValueError: input or a state has neither 1 nor 2 dimensions.
        RuntimeError: any other mismatch of shape, dtype or device.

    Example::

        >>> cell = lltm.LSTMCell(10, 20)
        >>> h, c = cell(torch.randn(3, 10))
        >>> h, c = cell(torch.randn(3, 10), (h, c))
    """

    def to_torch(self) -> nn.LSTMCell:
        """A new nn.LSTMCell with the same Parameters and training mode, as :meth:`LSTM.to_torch` makes an nn.LSTM."""
        module = torch_rnn.LSTMCell(self.input_size, self.hidden_size, self.bias, device="meta")
        share_parameters(self, module)
        return module

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Compute one step: the next state (h, c) from ``input`` and the state ``hx``. The class describes them."""
        if input.dim() != 1 and input.dim() != 2:
            raise ValueError(f"LSTMCell: Expected input to be 1D or 2D, got {input.dim()}D instead")
        if not torch.jit.is_tracing() and input.size(-1) != self.input_size:
            raise RuntimeError(
                "LSTMCell: input.size(-1) must be equal to input_size. "
                f"Expected {self.input_size}, got {input.size(-1)}"
            )
        batched = input.dim() == 2
        steps = input.unsqueeze(0) if batched else input.unsqueeze(0).unsqueeze(0)
        h0: Tensor | None = None
        c0: Tensor | None = None
        if hx is not None:
            if not torch.jit.is_scripting():
                _checks.check_cell_pair("LSTMCell", "hx", "(h_0, c_0)", hx)
            h0, c0 = hx
            expected = list(input.shape[:-1]) + [self.hidden_size]
            _check_cell_state(0, h0, expected)
            _check_cell_state(1, c0, expected)
            if not batched:
                h0, c0 = h0.unsqueeze(0), c0.unsqueeze(0)
        bias: Tensor | None = None
        if self.bias:
            bias = _sum_of_biases(self.bias_ih, self.bias_hh)
        _, h, c, _, _ = torch.ops.lltm.lstm(steps, self.weight_ih, self.weight_hh, bias, h0, c0)
        if not batched:
            return h.squeeze(0), c.squeeze(0)
        return h, c


def _sum_of_biases(bias_ih: Tensor, bias_hh: Tensor) -> Tensor:
    # Not +, whose gradient would be that of both: one tensor, which clipping in place scales twice.
    return torch.sub(bias_ih, bias_hh, alpha=-1)


def share_parameters(source: nn.Module, target: nn.Module) -> None:
    """Give the parameters of a module of this package to its namesake of torch.nn."""
    for name, _ in list(target.named_parameters()):
        if name not in source._parameters:
            raise RuntimeError(
                f"{type(target).__name__}.to_torch: {name} is no parameter, but computed from others, which the new "
                "module would not follow: first make it one, by torch.nn.utils.parametrize.remove_parametrizations, "
                "remove_weight_norm, remove_spectral_norm or prune.remove"
            )
        setattr(target, name, source._parameters[name])
    target.train(source.training)


def _check_cell_state(index: int, state: Tensor, expected: list[int]) -> None:
    if state.dim() != 1 and state.dim() != 2:
        raise ValueError(f"LSTMCell: Expected hx[{index}] to be 1D or 2D, got {state.dim()}D instead")
    if not torch.jit.is_tracing() and list(state.shape) != expected:
        raise RuntimeError(f"LSTMCell: Expected hx[{index}] size {expected}, got {list(state.shape)}")
