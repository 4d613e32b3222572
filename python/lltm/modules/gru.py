"""GRU and GRUCell, nn.GRU's own cell on this library's kernels."""

from typing import overload

import torch
from torch import Tensor, nn
from torch.nn.modules import rnn as torch_rnn  # whose classes stay while a program patches torch.nn.GRU
from torch.nn.utils.rnn import PackedSequence

from .. import _checks, _initialization, _recurrent
from .lstm import share_parameters

__all__ = ["GRU", "GRUCell"]


class GRU(_recurrent.LayersOfTorch):
    """Layers of GRU cells over whole sequences, in one direction or both, in place of :class:`torch.nn.GRU`.

    Constructor, parameters, initialization after the same seed, inputs, outputs and checkpoints are those of nn.GRU: a
    trained model only has to change the name of the class. The results are nn.GRU's, to rounding. Each layer and
    direction is one call of ``torch.ops.lltm.gru``, which computes for every step::

        r = sigmoid(x @ W_ir.T + b_ir + h @ W_hr.T + b_hr)
        z = sigmoid(x @ W_iz.T + b_iz + h @ W_hz.T + b_hz)
        n = tanh(x @ W_in.T + b_in + r * (h @ W_hn.T + b_hn))
        h = n + z * (h - n)

    Source of the formula: Cho et al., Learning Phrase Representations using RNN Encoder-Decoder, 2014, with the reset
    gate after the product, as nn.GRU has it. A reset gate before the product (``reset_after=False`` in Keras,
    ``linear_before_reset=0`` in ONNX) is another cell, which this is not.

    Beyond nn.GRU, it takes lengths and resets, has :meth:`states`, runs in ``torch.vmap``, is differentiable twice, and
    compiles in one graph. With 16-bit inputs, h is carried from step to step in float32, and a float32 h_0 gives a
    float32 h_n, also under autocast. A sequence may have no steps.

    Args:
        input_size: the number of features of the input, I.
        hidden_size: the number of features of the state, H.
        num_layers: the number of layers, L. Each layer after the first takes the outputs of the previous one.
        bias: if ``False``, the layers have no biases. Default: ``True``.
        batch_first: if ``True``, input, output and reset have the batch before the steps. Does not apply to the state.
        dropout: during training, the probability of zeroing an element of the output of each layer but the last.
        bidirectional: if ``True``, a second direction runs each sequence from its end. D is then 2, otherwise 1.
        device, dtype: the device and dtype of the parameters.

    Inputs: input, hx, lengths, reset, for T steps and a batch of N
        * **input**, **lengths**, **reset**: as those of :class:`LSTM`.
        * **hx**: the state h_0, (D * L, N, H), or (D * L, H) for a single sequence, in input's dtype, or float32 if the
          input is 16-bit. Default: zeros.

    Outputs: output, h_n
        * **output**: the outputs of the last layer: (T, N, D * H), (N, T, D * H), (T, D * H), or a PackedSequence, like
          the input.
        * **h_n**: (D * L, N, H), or (D * L, H): the state after the last step of each layer and, within a layer, of
          each direction.

    Attributes:
        weight_ih_l[k], weight_ih_l[k]_reverse: (3H, I) for the first layer, (3H, D * H) for the others. Rows in the
            order reset gate, update gate, candidate.
        weight_hh_l[k], weight_hh_l[k]_reverse: (3H, H).
        bias_ih_l[k], bias_hh_l[k], bias_ih_l[k]_reverse, bias_hh_l[k]_reverse: (3H); absent with ``bias=False``.
            All parameters are initialized uniformly in +-1/sqrt(H).

    Raises:
        TypeError, ValueError: the constructor's arguments are invalid, input has the wrong number of dimensions or not
            the parameters' dtype, hx, lengths or reset is not a tensor, or lengths is given together with a
            PackedSequence.
        RuntimeError: any other mismatch of shape, dtype or device.

    Example::

        >>> theirs = torch.nn.GRU(10, 20, num_layers=2)
        >>> rnn = lltm.GRU(10, 20, num_layers=2)
        >>> rnn.load_state_dict(theirs.state_dict())
        <All keys matched successfully>
        >>> input = torch.randn(5, 3, 10)  # 5 steps of a batch of 3
        >>> torch.allclose(rnn(input)[0], theirs(input)[0], atol=1e-6)
        True
        >>> output, h_n = rnn(input, lengths=torch.tensor([5, 2, 0]))
    """

    _kind = "GRU"
    _gates = 3
    _layer_parameters: list[Tensor]  # again, because TorchScript reads the annotations of one class

    mode = "GRU"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        proj_size: None = None,  # refused as nn.GRU does, which takes not even 0
    ) -> None:
        if proj_size is not None:
            raise ValueError("GRU: proj_size argument is only supported for LSTM, not RNN or GRU")
        super().__init__()
        self._set_up(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialize the parameters uniformly in +-1/sqrt(hidden_size), as nn.GRU does after the same seed."""
        _initialization.uniform(self, self.hidden_size)

    def to_torch(self) -> nn.GRU:
        """A new nn.GRU with the same Parameters and training mode, as :meth:`LSTM.to_torch` makes an nn.LSTM.

        Raises:
            RuntimeError: weights are computed from other parameters, by a hook or by a parametrization.
        """
        module = torch_rnn.GRU(
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
        hx: Tensor | None = None,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
        return_states: bool = False,
    ) -> tuple[Tensor, Tensor]:
        pass

    @overload
    @_recurrent.overload_in_scripts
    def forward(
        self,
        input: PackedSequence,
        hx: Tensor | None = None,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
        return_states: bool = False,
    ) -> tuple[PackedSequence, Tensor]:
        pass

    def forward(self, input, hx=None, lengths=None, reset=None, return_states=False):  # type: ignore[no-untyped-def]
        """Run all layers over ``input``, from the state ``hx``. Returns output, h_n.

        The class describes the arguments, the results and the errors. With ``return_states``, which TorchScript
        refuses, returns what :meth:`states` does.
        """
        if torch.jit.is_scripting():
            if return_states:
                raise RuntimeError("GRU: in TorchScript, results cannot depend on return_states: call states()")
        elif return_states:
            if isinstance(input, PackedSequence):
                return self._packed_states_of_h(input, hx, lengths, reset)
            return self._padded_states_of_h(input, hx, lengths, reset)
        if isinstance(input, PackedSequence):
            output, h_n, _, _ = self._run_packed(input, self._pair_of(hx), lengths, reset, False)
            return _recurrent.like(input, output), h_n
        else:
            output, h_n, _, _ = self._run_padded(input, self._pair_of(hx), lengths, reset, False)
            return output, h_n

    @overload
    @_recurrent.overload_in_scripts
    def states(
        self,
        input: Tensor,
        hx: Tensor | None = None,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        pass

    @overload
    @_recurrent.overload_in_scripts
    def states(
        self,
        input: PackedSequence,
        hx: Tensor | None = None,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> tuple[PackedSequence, Tensor, PackedSequence]:
        pass

    def states(self, input, hx=None, lengths=None, reset=None):  # type: ignore[no-untyped-def]
        """Run all layers over ``input``, and return the state after every step, too: output, h_n, h.

        **h** is that of :meth:`LLTM.states`.
        """
        if not torch.jit.is_scripting():
            return self(input, hx, lengths, reset, return_states=True)
        elif isinstance(input, PackedSequence):
            return self._packed_states_of_h(input, hx, lengths, reset)
        else:
            return self._padded_states_of_h(input, hx, lengths, reset)

    def _padded_states_of_h(
        self, input: Tensor, hx: Tensor | None, lengths: Tensor | None, reset: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        output, h_n, _, states = self._run_padded(input, self._pair_of(hx), lengths, reset, True)
        return output, h_n, states[0]

    def _packed_states_of_h(
        self, input: PackedSequence, hx: Tensor | None, lengths: Tensor | None, reset: Tensor | None
    ) -> tuple[PackedSequence, Tensor, PackedSequence]:
        output, h_n, _, states = self._run_packed(input, self._pair_of(hx), lengths, reset, True)
        return _recurrent.like(input, output), h_n, _recurrent.like(input, states[0])

    def _pair_of(self, hx: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """The state as the base class has it: the h that is multiplied, and the one that is carried."""
        if hx is None:
            return None
        if not torch.jit.is_scripting():
            _checks.check_state_of_h(self._kind, hx)
        return hx, hx

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
        if hx is not None:
            h0 = hx[0]
        dropout = self.dropout if self._drops and self.training else 0.0
        layers = torch.ops.lltm.gru_layers
        if not torch.jit.is_scripting():
            layers = _recurrent.outside_of_exports(layers)
        output, h_n, states = layers(
            input, parameters, h0, lengths, reset, batch_sizes, sorted_indices, unsorted_indices, self.bias,
            self.batch_first, dropout, self.bidirectional, keep,
        )  # fmt: skip
        return output, h_n, h_n, states


class GRUCell(_recurrent.CellOfTorch, nn.GRUCell):
    """One step of nn.GRU's cell, in place of :class:`torch.nn.GRUCell`. It runs as a sequence of one step.

    Constructor, parameters, initialization and checkpoints are those of nn.GRUCell. Beyond it, this cell runs in
    ``torch.vmap``, and is differentiable twice on every device.

    Args:
        input_size: the number of features of the input, I.
        hidden_size: the number of features of the state, H.
        bias: if ``False``, the cell has no biases. Default: ``True``.
        device, dtype: the device and dtype of the parameters.

    Inputs: input, hx
        * **input**: (N, I), or (I) for a single example.
        * **hx**: the state h, (N, H), or (H) for a single example, in input's dtype, or float32 if the input is 16-bit.
          Default: zeros.

    Outputs: h
        * the next state, (N, H), or (H), in the dtype of hx if that is given, so that a loop can carry it in float32.

    Raises:
        TypeError: hx is not a tensor.
        ValueError: input or hx has neither 1 nor 2 dimensions.
        RuntimeError: any other mismatch of shape, dtype or device.

    Example::

        >>> cell = lltm.GRUCell(10, 20)
        >>> h = cell(torch.randn(3, 10))
        >>> h = cell(torch.randn(3, 10), h)
    """

    def to_torch(self) -> nn.GRUCell:
        """A new nn.GRUCell with the same Parameters and training mode, as :meth:`GRU.to_torch` makes an nn.GRU."""
        module = torch_rnn.GRUCell(self.input_size, self.hidden_size, self.bias, device="meta")
        share_parameters(self, module)
        return module

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Compute one step: the next state from ``input`` and the state ``hx``. The class describes them."""
        if input.dim() != 1 and input.dim() != 2:
            raise ValueError(f"GRUCell: Expected input to be 1D or 2D, got {input.dim()}D instead")
        if not torch.jit.is_tracing() and input.size(-1) != self.input_size:
            raise RuntimeError(
                f"GRUCell: input.size(-1) must be equal to input_size. Expected {self.input_size}, got {input.size(-1)}"
            )
        batched = input.dim() == 2
        steps = input.unsqueeze(0) if batched else input.unsqueeze(0).unsqueeze(0)
        h0: Tensor | None = None
        if hx is not None:
            if not torch.jit.is_scripting() and not isinstance(hx, Tensor):
                raise TypeError(f"GRUCell: expected hx to be a tensor, got an object of type {type(hx).__name__}")
            if hx.dim() != 1 and hx.dim() != 2:
                raise ValueError(f"GRUCell: Expected hidden to be 1D or 2D, got {hx.dim()}D instead")
            _checks.check_size("GRUCell", "hidden", hx, list(input.shape[:-1]) + [self.hidden_size])
            h0 = hx if batched else hx.unsqueeze(0)
        bias_ih: Tensor | None = None
        bias_hh: Tensor | None = None
        if self.bias:
            bias_ih, bias_hh = self.bias_ih, self.bias_hh
        _, h, _ = torch.ops.lltm.gru(steps, self.weight_ih, self.weight_hh, bias_ih, bias_hh, h0)
        return h if batched else h.squeeze(0)
