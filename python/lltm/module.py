"""LLTM, layers of the recurrent cell over whole sequences, as a drop-in replacement for nn.LSTM."""

from itertools import chain
from typing import Any, overload

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from . import _checks, _hooks, _initialization, _leaf, _packed
from .cell import LLTMCell

_DEFAULT_LEAK = 2.0
"""Better than none in seven of the eight tasks of docs/the-cell.md."""


class _LayerParameters:
    """The parameters of all layers as one list, for TorchScript, which can index a list with a loop variable.

    TorchScript takes a module's attributes from its ``__dict__`` and their values from ``getattr``. Each module
    therefore has an empty list in its ``__dict__``, and this descriptor returns the current parameters instead.
    """

    def __get__(self, module: "LLTM | None", owner: type) -> "list[Tensor] | _LayerParameters":
        return self if module is None else module._read_parameters()

    def __set__(self, module: "LLTM", value: list[Tensor]) -> None:
        raise AttributeError("LLTM: assign the parameters themselves, such as weights_l0")


class LLTM(_leaf.Leaf):
    """Layers of LLTM cells over whole sequences, in one direction or both. Replaces :class:`torch.nn.LSTM`.

    The constructor, inputs, outputs, order of the states, dropout, packed sequences and scripting are those of nn.LSTM:
    a model only has to change the name of the class. Each layer and direction is one call of
    ``torch.ops.lltm.sequence``, which computes for every step::

        z_i, z_o, z_g = ([h, x] @ weights.T + bias).chunk(3)
        c = c + ELU(z_g) * sigmoid(z_i)
        h = tanh(c) * sigmoid(z_o)

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

    __constants__ = [
        "input_size",
        "hidden_size",
        "num_layers",
        "bias",
        "batch_first",
        "dropout",
        "bidirectional",
        "proj_size",
    ]
    __jit_unused_properties__ = ["all_weights"]

    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    dropout: float
    bidirectional: bool
    proj_size: int
    leak: float
    _drops: bool
    _layer_parameters: list[Tensor] = _LayerParameters()  # type: ignore[assignment]

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
        _checks.check_options(input_size, hidden_size, num_layers, bias, batch_first, dropout, proj_size)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = int(num_layers)  # nn.LSTM takes integers of NumPy, too
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bool(bidirectional)
        self.proj_size = proj_size
        self.leak = float(leak)
        self.__dict__["_layer_parameters"] = []  # see _LayerParameters
        directions = 2 if bidirectional else 1
        for index, names in enumerate(self._parameter_names()):
            features = input_size if index < directions else directions * hidden_size
            shapes = [(3 * hidden_size, hidden_size + features), (3 * hidden_size,)]
            for name, shape in zip(names, shapes, strict=False):
                self.register_parameter(name, torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        self.reset_parameters()

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

    def _parameter_names(self) -> list[list[str]]:
        """The names of the weights and bias (if any) of each layer and, within a layer, each direction."""
        kinds = ("weights", "bias") if self.bias else ("weights",)
        suffixes = ("", "_reverse") if self.bidirectional else ("",)
        return [[f"{kind}_l{k}{suffix}" for kind in kinds] for k in range(self.num_layers) for suffix in suffixes]

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing, unexpected, errors) -> None:  # type: ignore[no-untyped-def]
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, errors)
        _checks.refuse_lstm(self, state_dict, prefix + "weight_ih_l0", errors)

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

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "dropout":
            # With dynamic=True, torch.compile treats a float as a variable, and compiles twice where it is compared.
            # Comparing here spares modules without dropout from that.
            self._drops = self.dropout > 0

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The weights and bias of each layer and direction, in the order of the states."""
        return [[getattr(self, name) for name in names] for names in self._parameter_names()]

    def reset_parameters(self, leak: float | None = None) -> None:
        """Reinitialize the parameters uniformly in +-1/sqrt(hidden_size), and subtract the leak.

        ``leak``, by default that of the constructor, is subtracted from the weight of each h in the candidate of its
        own cell. A positive cell is then pulled down and a negative one up, in place of a forget gate. Use 0 where
        nothing should be forgotten. docs/the-cell.md measures what that does.

        Raises:
            RuntimeError: weights are computed from other parameters, by a hook or by a parametrization that has no
                inverse, so that the leak cannot be written.
        """
        names = [weights for weights, *_ in self._parameter_names()]
        _initialization.reset_parameters(self, names, self.hidden_size, self.leak if leak is None else leak)

    def flatten_parameters(self) -> None:
        """Does nothing: the operator reads the parameters in place."""

    @overload
    @torch._jit_internal._overload_method
    def forward(
        self,
        input: Tensor,
        hx: tuple[Tensor, Tensor] | None = None,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        pass

    @overload
    @torch._jit_internal._overload_method
    def forward(
        self,
        input: PackedSequence,
        hx: tuple[Tensor, Tensor] | None = None,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> tuple[PackedSequence, tuple[Tensor, Tensor]]:
        pass

    def forward(self, input, hx=None, lengths=None, reset=None):  # type: ignore[no-untyped-def]
        """Run all layers over ``input``. The class describes the arguments and the results."""
        if isinstance(input, PackedSequence):
            output, state, _, _ = self._run_packed(input, hx, lengths, reset, False)
            return output, state
        else:
            output, state, _, _ = self._run_padded(input, hx, lengths, reset, False)
            return output, state

    @overload
    @torch._jit_internal._overload_method
    def states(
        self,
        input: Tensor,
        hx: tuple[Tensor, Tensor] | None = None,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        pass

    @overload
    @torch._jit_internal._overload_method
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

        Takes the arguments of the module's call, and returns its results first. Of the module's hooks, those that
        compute parameters run: those of ``torch.nn.utils.weight_norm``, ``spectral_norm`` and ``prune``.

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
            _hooks.compute_parameters(self, chain.from_iterable(self._parameter_names()))
        if isinstance(input, PackedSequence):
            output, state, h, c = self._run_packed(input, hx, lengths, reset, True)
            return output, state, (_packed.like(input, torch.stack(h, 1)), _packed.like(input, torch.stack(c, 1)))
        else:
            output, state, h, c = self._run_padded(input, hx, lengths, reset, True)
            return output, state, (torch.stack(h), torch.stack(c))

    def _read_parameters(self) -> list[Tensor]:
        """The weights and biases of all layers, read once per call: parametrizations are evaluated each time."""
        if torch.jit.is_scripting():
            return self._layer_parameters
        else:
            return [getattr(self, name) for name in chain.from_iterable(self._parameter_names())]

    def _run_padded(
        self,
        input: Tensor,
        hx: tuple[Tensor, Tensor] | None,
        lengths: Tensor | None,
        reset: Tensor | None,
        keep: bool,
    ) -> tuple[Tensor, tuple[Tensor, Tensor], list[Tensor], list[Tensor]]:
        """The results of a call and, with keep, h and c of every step, each a list by layer and direction."""
        if not torch.jit.is_scripting():
            _checks.check_input_kind(input)
        if input.dim() != 2 and input.dim() != 3:
            raise ValueError(f"LLTM: Expected input to be 2D or 3D, got {input.dim()}D instead")
        if not torch.jit.is_scripting():
            _checks.check_kinds(lengths, reset)
        parameters = self._read_parameters()
        self._check_input(input, parameters[0])
        if reset is not None:
            _checks.check_size("reset", reset, list(input.shape[:-1]))
        batched = input.dim() == 3
        if hx is not None:
            _checks.check_pair(hx, input.dim())
        if not batched:
            input = input.unsqueeze(1)
            if hx is not None:
                hx = (hx[0].unsqueeze(1), hx[1].unsqueeze(1))
            if lengths is not None and lengths.dim() == 0:
                lengths = lengths.unsqueeze(0)
            if reset is not None:
                reset = reset.unsqueeze(1)
        elif self.batch_first:
            input = input.transpose(0, 1)
            if reset is not None:
                reset = reset.transpose(0, 1)
        if hx is not None:
            _checks.check_states(hx, self.num_layers, self.bidirectional, input.size(1), self.hidden_size)
        output, (h_n, c_n), h, c = self._run_layers(input, parameters, hx, lengths, reset, keep)
        if not batched:
            state = (h_n.squeeze(1), c_n.squeeze(1))
            return output.squeeze(1), state, [layer.squeeze(1) for layer in h], [layer.squeeze(1) for layer in c]
        if self.batch_first:
            output = output.transpose(0, 1)
            h, c = [layer.transpose(0, 1) for layer in h], [layer.transpose(0, 1) for layer in c]
        return output, (h_n, c_n), h, c

    def _run_packed(
        self,
        input: PackedSequence,
        hx: tuple[Tensor, Tensor] | None,
        lengths: Tensor | None,
        reset: Tensor | None,
        keep: bool,
    ) -> tuple[PackedSequence, tuple[Tensor, Tensor], list[Tensor], list[Tensor]]:
        """Like _run_padded, but output, h and c are packed.

        Unpack the rows into a padded tensor, longest sequence first, run the layers, and pack their outputs; or do this
        segment by segment (see _packed.py)."""
        data, batch_sizes, sorted_indices, unsorted_indices = input
        if lengths is not None:
            raise ValueError("LLTM: a PackedSequence knows its lengths: expected lengths to be None")
        if data.dim() != 2:
            raise RuntimeError(f"LLTM: input must have 2 dimensions, got {data.dim()}")
        if not torch.jit.is_scripting():
            _checks.check_kinds(lengths, reset)
            _checks.check_batch_sizes(batch_sizes, data)
        parameters = self._read_parameters()
        self._check_input(data, parameters[0])
        steps, batch = batch_sizes.size(0), _packed.number_of_sequences(batch_sizes)
        if reset is not None:
            _checks.check_size("reset", reset, [batch, steps] if self.batch_first else [steps, batch])
            if self.batch_first:
                reset = reset.transpose(0, 1)
            if sorted_indices is not None:
                reset = reset.index_select(1, sorted_indices)
        if hx is not None:
            _checks.check_pair(hx, 3)
            _checks.check_states(hx, self.num_layers, self.bidirectional, batch, self.hidden_size)
            if sorted_indices is not None:
                hx = (hx[0].index_select(1, sorted_indices), hx[1].index_select(1, sorted_indices))

        lengths = _packed.lengths_of(batch_sizes, batch, data.device)
        segments: list[_packed.Segment] | None = None
        if not torch.jit.is_scripting():
            segments = _packed.make_segments(batch_sizes, batch, data)
        if segments is None:
            rows = _packed.padded_rows(batch_sizes, batch, data)
            padded = _packed.pad(data, rows, steps, batch)
            output, (h_n, c_n), h, c = self._run_layers(padded, parameters, hx, lengths, reset, keep)
            output = _packed.pack(output, rows)
            h, c = [_packed.pack(layer, rows) for layer in h], [_packed.pack(layer, rows) for layer in c]
        else:
            output, (h_n, c_n), h, c = self._run_layers(data, parameters, hx, lengths, reset, keep, segments)
        if unsorted_indices is not None:
            h_n, c_n = h_n.index_select(1, unsorted_indices), c_n.index_select(1, unsorted_indices)
        return _packed.like(input, output), (h_n, c_n), h, c

    def _run_layers(
        self,
        input: Tensor,
        parameters: list[Tensor],
        hx: tuple[Tensor, Tensor] | None,
        lengths: Tensor | None,
        reset: Tensor | None,
        keep: bool,
        segments: list[_packed.Segment] | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor], list[Tensor], list[Tensor]]:
        """Run all layers over an input (T, N, I), with states (D * L, N, H), lengths (N) and reset (T, N).

        With segments, input, output, and h and c of every step are packed.
        """
        directions = 2 if self.bidirectional else 1
        resets = [reset]
        h_n: list[Tensor] = []
        c_n: list[Tensor] = []
        h_of_steps: list[Tensor] = []
        c_of_steps: list[Tensor] = []
        for layer in range(self.num_layers):
            outputs: list[Tensor] = []
            for direction in range(directions):
                index = layer * directions + direction
                if layer == 0 and direction == 1:  # here, because the first call has checked reset and lengths
                    resets.append(_shift_to_reverse(reset, lengths))
                weights = parameters[2 * index if self.bias else index]
                bias: Tensor | None = None
                if self.bias:
                    bias = parameters[2 * index + 1]
                h0: Tensor | None = None
                c0: Tensor | None = None
                if hx is not None:
                    h0, c0 = hx[0][index], hx[1][index]
                if segments is None:
                    output, h, c, cells, _ = torch.ops.lltm.sequence(
                        input, weights, bias, h0, c0, lengths, resets[direction], direction == 1, keep
                    )
                else:
                    output, h, c, cells = _packed.run_segments(
                        segments, input, weights, bias, h0, c0, resets[direction], direction == 1, keep
                    )
                outputs.append(output)
                h_n.append(h)
                c_n.append(c)
                if keep:
                    h_of_steps.append(output)
                    c_of_steps.append(cells)
            input = outputs[0] if directions == 1 else torch.cat(outputs, dim=-1)
            if self._drops and self.training and layer + 1 < self.num_layers:
                input = torch.nn.functional.dropout(input, self.dropout)
        # Not a view, even of one layer: callers detach the states in place.
        return input, (torch.stack(h_n), torch.stack(c_n)), h_of_steps, c_of_steps

    def _check_input(self, input: Tensor, weights: Tensor) -> None:
        """Check the dtype and number of features of the input, padded or packed."""
        if not torch.jit.is_scripting():
            dtype = weights.dtype
            if input.dtype != dtype and not _checks.autocasts(input.device.type):
                message = (
                    f"LLTM: input dtype ({input.dtype}) does not match weight dtype ({dtype}). Convert the input: "
                )
                message += f"input.to({dtype})"
                if input.is_floating_point():
                    message += f", or the module: module.to({input.dtype})"
                raise ValueError(message)
        if not torch.jit.is_tracing() and input.size(-1) != self.input_size:
            raise RuntimeError(
                f"LLTM: input.size(-1) must be equal to input_size. Expected {self.input_size}, got {input.size(-1)}"
            )

    def extra_repr(self) -> str:
        parts = [str(self.input_size), str(self.hidden_size)]
        defaults: dict[str, float] = {
            "num_layers": 1,
            "bias": True,
            "batch_first": False,
            "dropout": 0,
            "bidirectional": False,
            "leak": _DEFAULT_LEAK,
        }
        for name, default in defaults.items():
            if getattr(self, name) != default:
                parts.append(f"{name}={getattr(self, name)}")
        return ", ".join(parts)


def _shift_to_reverse(reset: Tensor | None, lengths: Tensor | None) -> Tensor | None:
    """The reset (T, N) of a reverse layer.

    The boundary between steps t-1 and t is crossed before step t in the forward direction, and before step t-1 in the
    reverse direction. A reset at index ``length`` belongs to a step that is not run: when shifted, it must not clear
    the initial state, which enters at the row's last step.
    """
    if reset is None:
        return None
    shifted = torch.nn.functional.pad(reset, (0, 0, 0, 1))[1:]
    if lengths is not None:
        next_step = torch.ones_like(reset, dtype=torch.int64).cumsum(0)
        shifted = shifted & (next_step < lengths)
    return shifted
