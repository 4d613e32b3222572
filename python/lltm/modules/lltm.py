"""LLTM, layers of the recurrent cell over whole sequences, as a drop-in replacement for nn.LSTM."""

from typing import Any, overload

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from .. import _checks, _initialization, _recurrent
from .cell import LLTMCell

__all__ = ["LLTM"]

_DEFAULT_LEAK = 2.0
"""Better than none in six of the eight tasks of docs/the-cell.md."""


class LLTM(_recurrent.Recurrent):
    """Layers of LLTM cells over whole sequences, in one direction or both. Replaces :class:`torch.nn.LSTM`.

    The constructor, inputs, outputs, order of the states, dropout, packed sequences and scripting are those of nn.LSTM:
    a model only has to change the name of the class. Each layer and direction is one call of
    ``torch.ops.lltm.sequence``, which computes for every step::

        z_i, z_o, z_g = ([h, x] @ weights.T + bias).chunk(3)
        c = c + ELU(z_g) * sigmoid(z_i)
        h = tanh(c) * sigmoid(z_o)

    Source of the formula: :class:`LLTMCell`.

    There is no forget gate, so ``|c|`` can grow with the number of steps: if the state is carried from call to
    call, ``reset`` it where a new sequence begins.

    Args:
        input_size: the number of features of the input, I.
        hidden_size: the number of features of the state, H.
        num_layers: the number of layers, L. Each layer after the first takes the outputs of the previous one.
        bias: if ``False``, the layers have no biases. Default: ``True``.
        batch_first: if ``True``, input, output and reset have the batch before the steps. Does not apply to the states.
        dropout: during training, the probability of zeroing an element of the output of each layer but the last.
        bidirectional: if ``True``, a second direction runs each sequence from its end. D is then 2, otherwise 1.
        proj_size: for compatibility with nn.LSTM; must be 0.
        device, dtype: the device and dtype of the parameters.
        leak: what :meth:`reset_parameters` subtracts from the weight of each h in the candidate of its own cell.
            Default: 2.0.

    Inputs: input, hx, lengths, reset, for T steps and a batch of N
        * **input**: (T, N, I), or (N, T, I) with ``batch_first``; (T, I) for a single sequence; or a PackedSequence.
        * **hx**: the pair (h_0, c_0), each (D * L, N, H), or (D * L, H) for a single sequence. Default: zeros. c_0 may
          be float32 if the input is 16-bit; c_n is then float32, too, and a stream of calls can carry its state
          exactly.
        * **lengths**: (N), int64 or int32, on input's device; (1) or () for a single sequence: the number of steps in
          each row. Values beyond a row's length are not read, and the output there is zero. Never copied to the host.
          Not allowed with a PackedSequence, which has its own lengths.
        * **reset**: (T, N), bool, on input's device; (N, T) with ``batch_first``, (T) for a single sequence: where
          true, a new episode begins with this step. No state crosses the boundary between this step and the previous
          one, in either direction; at the first step, h_0 and c_0 are replaced by zeros. With a PackedSequence, the
          rows are in the order of the batch before packing, like those of hx.

    Outputs: output, (h_n, c_n)
        * **output**: the outputs of the last layer: (T, N, D * H), (N, T, D * H), (T, D * H), or a PackedSequence, like
          the input.
        * **h_n**, **c_n**: (D * L, N, H), or (D * L, H): the state after the last step of each layer and, within a
          layer, of each direction.

    Attributes:
        weights_l[k], weights_l[k]_reverse: (3H, H + I) for the first layer, (3H, H + D * H) for the others. Rows in the
            order input gate, output gate, candidate; columns in the order h, x.
        bias_l[k], bias_l[k]_reverse: (3H); absent with ``bias=False``.
            All parameters are initialized by :meth:`reset_parameters`. They correspond to ``weights`` and
            ``bias`` of an :class:`LLTMCell`, so a cell's checkpoint can be loaded into a layer after renaming.

    Raises:
        TypeError, ValueError: the constructor's arguments are invalid, input has the wrong number of dimensions or not
            the parameters' dtype, lengths or reset is not a tensor, or lengths is given together with a PackedSequence.
        RuntimeError: any other mismatch of shape, dtype or device.

    Example::

        >>> rnn = lltm.LLTM(10, 20, num_layers=2)
        >>> input = torch.randn(5, 3, 10)  # 5 steps of a batch of 3
        >>> output, (h_n, c_n) = rnn(input)
        >>> output.shape, h_n.shape
        (torch.Size([5, 3, 20]), torch.Size([2, 3, 20]))
        >>> lengths = torch.tensor([5, 2, 0])
        >>> output, state = rnn(input, (h_n, c_n), lengths)
        >>> output[2:, 1].any()
        tensor(False)
    """

    _kind = "LLTM"
    _weight_kinds = ("weights",)
    _bias_kinds = ("bias",)
    _options = _recurrent.Recurrent._options | {"leak": _DEFAULT_LEAK}

    leak: float
    _layer_parameters: list[Tensor]  # again, because TorchScript reads the annotations of one class

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
        *,
        leak: float = _DEFAULT_LEAK,
    ) -> None:
        super().__init__()
        self._set_up(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype
        )
        self.leak = float(leak)
        self.reset_parameters()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("leak", 0.0)  # pickled by a version of lltm without one

    @classmethod
    def from_cell(cls, cell: LLTMCell, batch_first: bool = False) -> "LLTM":
        """Make a module of one layer that computes the same as a loop of ``cell``. The parameters are copied.

        ``cls`` is constructed with the arguments of LLTM.

        Raises:
            TypeError: ``cell`` is not an LLTMCell.
            ValueError: the cell has no input features.

        Example::

            >>> cell = lltm.LLTMCell(10, 20)
            >>> rnn = lltm.LLTM.from_cell(cell)
            >>> input = torch.randn(5, 3, 10)
            >>> state = None
            >>> for x in input:
            ...     state = cell(x, state)
            >>> output, _ = rnn(input)
            >>> torch.allclose(output[-1], state[0], atol=1e-6)
            True
        """
        if not isinstance(cell, LLTMCell):
            raise TypeError(f"LLTM.from_cell: expected an LLTMCell, got {type(cell).__name__}")
        if cell.input_features == 0:
            raise ValueError("LLTM.from_cell: the cell has no input features")
        weights, bias = cell.weights, cell.bias
        layer = cls(
            cell.input_features,
            cell.state_size,
            bias=bias is not None,
            batch_first=batch_first,
            device=weights.device,
            dtype=weights.dtype,
            leak=cell.leak,
        )
        for name, source in (("weights_l0", weights), ("bias_l0", bias)):
            if source is not None:
                parameter = torch.nn.Parameter(source.detach().clone(), requires_grad=source.requires_grad)
                setattr(layer, name, parameter)
        return layer.train(cell.training)

    @torch.jit.unused  # binds it to scripted modules, too, which are no instances of this class
    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing, unexpected, errors) -> None:  # type: ignore[no-untyped-def]
        _recurrent.load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing, unexpected, errors)
        _checks.refuse_lstm(self, state_dict, prefix, errors)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if name.startswith(("weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l")):
                weights = f"weights_l{name.partition('_l')[2]}"
                raise AttributeError(
                    f"{error}. The parameters of LLTM are weights_l[k] and bias_l[k]; "
                    f"lltm.split_weights(rnn.{weights}) gives the columns for h and for the input"
                ) from None
            raise

    def reset_parameters(self, leak: float | None = None) -> None:
        """Reinitialize the parameters uniformly in +-1/sqrt(hidden_size), and subtract the leak.

        ``leak``, by default that of the constructor, is subtracted from the weight of each h in the candidate of its
        own cell. A positive cell is then pulled down and a negative one up, in place of a forget gate. Use 0 where
        nothing should be forgotten. docs/the-cell.md measures what that does.

        Raises:
            RuntimeError: weights are computed from other parameters, by a hook or by a parametrization that has no
                inverse, so that the leak cannot be written; or a parameter is a partial DTensor. Nothing has changed
                then, nor has the random state.
        """
        names = [weights for weights, *_ in self._parameter_names()]
        _initialization.reset_parameters(self, names, self.hidden_size, self.leak if leak is None else leak)

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
                raise RuntimeError("LLTM: in TorchScript, results cannot depend on return_states: call states()")
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
        """Run all layers over ``input``, and return the state after every step, too.

        Takes the arguments of the module's call, and returns its results first. It is that call, with
        ``return_states=True``, so that the module's hooks run.

        Returns:
            output, (h_n, c_n), (h, c). At index t, **h** and **c** have the state of each layer and direction after
            step t was run, before dropout; zero beyond a row's length. Both are (D * L, T, N, H), or (D * L, N, T, H)
            with ``batch_first``, or (D * L, T, H) for a single sequence, in the dtype of output. If input is a
            PackedSequence, so are both, with data of (sum of lengths, D * L, H). Both are differentiable.

        Example::

            >>> rnn = lltm.LLTM(10, 20, num_layers=2)
            >>> input = torch.randn(5, 3, 10)
            >>> output, (h_n, c_n), (h, c) = rnn.states(input)
            >>> h.shape, torch.equal(h[1], output), torch.equal(c[:, -1], c_n)
            (torch.Size([2, 5, 3, 20]), True, True)
            >>> rest, _ = rnn(input[2:], (h[:, 1], c[:, 1]))  # runs again from the state after two steps
            >>> torch.allclose(rest, output[2:], atol=1e-6)
            True
        """
        if not torch.jit.is_scripting():
            return self(input, hx, lengths, reset, return_states=True)
        elif isinstance(input, PackedSequence):
            return self._packed_states(input, hx, lengths, reset)
        else:
            return self._padded_states(input, hx, lengths, reset)

    def _parameter_shapes(self, features: int) -> list[tuple[int, ...]]:
        return [(3 * self.hidden_size, self.hidden_size + features), (3 * self.hidden_size,)]

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
        layers = torch.ops.lltm.lltm_layers
        if not torch.jit.is_scripting():
            layers = _recurrent.outside_of_exports(layers)
        return layers(
            input, parameters, h0, c0, lengths, reset, batch_sizes, sorted_indices, unsorted_indices, self.bias,
            self.batch_first, dropout, self.bidirectional, keep,
        )  # fmt: skip
