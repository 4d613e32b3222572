"""What the recurrent layers have in common: nn.LSTM's interface, over one operator call per layer and direction."""

from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from . import _checks, _hooks, _leaf, _packed

if TYPE_CHECKING:  # PyTorch 2.11 has no types for it, and mypy none for what it decorates
    Function = TypeVar("Function")

    def overload_in_scripts(function: Function) -> Function: ...

else:
    overload_in_scripts = torch._jit_internal._overload_method


class _LayerParameters:
    """The parameters of all layers as one list, for TorchScript, which can index a list with a loop variable.

    TorchScript takes a module's attributes from its ``__dict__`` and their values from ``getattr``. Each module
    therefore has an empty list in its ``__dict__``, and this descriptor returns the current parameters instead.
    """

    def __get__(self, module: "Recurrent | None", owner: type) -> "list[Tensor] | _LayerParameters":
        return self if module is None else module._read_parameters()

    def __set__(self, module: "Recurrent", value: list[Tensor]) -> None:
        raise AttributeError(f"{module._kind}: assign the parameters themselves, such as {module._weight_kinds[0]}_l0")


class Recurrent(_leaf.Leaf):
    """The base of :class:`LLTM`, :class:`LSTM`, and :class:`GRU`, whose pair of states is h twice.

    A subclass names its parameters, gives their shapes, and runs one layer in one direction. It declares the overloads
    of ``forward`` and ``states``, because TorchScript finds them by the name of the class that is compiled.
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
        "_kind",
    ]
    __jit_unused_properties__ = ["all_weights"]

    _kind: str = ""
    """Begins the messages of errors."""
    _weight_kinds: ClassVar[tuple[str, ...]] = ()
    """The parameters of each layer and direction are named by these, followed by _l[k] and, maybe, _reverse."""
    _bias_kinds: ClassVar[tuple[str, ...]] = ()
    """Likewise, absent with bias=False."""
    _options: ClassVar[dict[str, float]] = {
        "num_layers": 1,
        "bias": True,
        "batch_first": False,
        "dropout": 0,
        "bidirectional": False,
    }
    """The arguments that repr() shows, with their defaults."""

    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    dropout: float
    bidirectional: bool
    proj_size: int
    _drops: bool
    _layer_parameters: list[Tensor] = _LayerParameters()  # type: ignore[assignment]

    def _set_up(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        proj_size: int,
        device: torch.device | str | int | None,
        dtype: torch.dtype | None,
    ) -> None:
        """Check the constructor's arguments, and make the parameters in nn.LSTM's order, uninitialized."""
        _checks.check_options(self._kind, input_size, hidden_size, num_layers, bias, batch_first, dropout, proj_size)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = dropout
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        self._prepare()
        directions = 2 if bidirectional else 1
        for index, names in enumerate(self._parameter_names()):
            features = input_size if index < directions else directions * hidden_size
            for name, shape in zip(names, self._parameter_shapes(features), strict=False):
                self.register_parameter(name, torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))

    def _prepare(self) -> None:
        """Make the attributes that follow from the others."""
        self.__dict__["_layer_parameters"] = []  # see _LayerParameters
        _checks.use_types_of_python(self, ("input_size", "hidden_size", "num_layers", "proj_size"), int)
        _checks.use_types_of_python(self, ("bias", "batch_first", "bidirectional"), bool)
        self.dropout = float(self.dropout)  # and _drops; nn.LSTM takes integers, too
        _leaf.pose_as_torch_nn(self)

    def _parameter_shapes(self, features: int) -> list[tuple[int, ...]]:
        """The shapes of the parameters of a direction with this many features, those of the biases last."""
        raise NotImplementedError

    def _run_direction(
        self,
        input: Tensor,
        parameters: list[Tensor],
        index: int,
        h0: Tensor | None,
        c0: Tensor | None,
        lengths: Tensor | None,
        reset: Tensor | None,
        reverse: bool,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The output, h_n, c_n and cells of one layer and direction, the index-th in the order of the states."""
        raise NotImplementedError

    def _parameter_names(self) -> list[list[str]]:
        """The names of the parameters of each layer and, within a layer, each direction."""
        kinds = self._weight_kinds + (self._bias_kinds if self.bias else ())
        suffixes = ("", "_reverse") if self.bidirectional else ("",)
        return [[f"{kind}_l{k}{suffix}" for kind in kinds] for k in range(self.num_layers) for suffix in suffixes]

    def __setattr__(self, name: str, value: Any) -> None:
        torch.nn.Module.__setattr__(self, name, value)
        if name == "dropout":
            # With dynamic=True, torch.compile treats a float as a variable, and compiles twice where it is compared.
            # Comparing here spares modules without dropout from that.
            self._drops = self.dropout > 0

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The parameters of each layer and direction, in the order of the states."""
        return [[getattr(self, name) for name in names] for names in self._parameter_names()]

    def flatten_parameters(self) -> None:
        """Does nothing: the operator reads the parameters in place."""

    def _read_parameters(self) -> list[Tensor]:
        """The parameters of all layers, read once per call: parametrizations are evaluated each time."""
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
            _checks.check_input_kind(self._kind, input)
        if input.dim() != 2 and input.dim() != 3:
            raise ValueError(f"{self._kind}: Expected input to be 2D or 3D, got {input.dim()}D instead")
        if not torch.jit.is_scripting():
            _checks.check_kinds(self._kind, lengths, reset)
        parameters = self._read_parameters()
        self._check_input(input, parameters[0])
        if reset is not None:
            _checks.check_size(self._kind, "reset", reset, list(input.shape[:-1]))
        batched = input.dim() == 3
        if hx is not None:
            _checks.check_pair(self._kind, hx, input.dim())
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
            _checks.check_states(self._kind, hx, self.num_layers, self.bidirectional, input.size(1), self.hidden_size)
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
            raise ValueError(f"{self._kind}: a PackedSequence knows its lengths: expected lengths to be None")
        if data.dim() != 2:
            raise RuntimeError(f"{self._kind}: input must have 2 dimensions, got {data.dim()}")
        if not torch.jit.is_scripting():
            _checks.check_kinds(self._kind, lengths, reset)
            _checks.refuse_to_export(self._kind)
            _checks.check_batch_sizes(self._kind, batch_sizes, data)
        parameters = self._read_parameters()
        self._check_input(data, parameters[0])
        steps, batch = batch_sizes.size(0), _packed.number_of_sequences(batch_sizes)
        if reset is not None:
            _checks.check_size(self._kind, "reset", reset, [batch, steps] if self.batch_first else [steps, batch])
            if self.batch_first:
                reset = reset.transpose(0, 1)
            if sorted_indices is not None:
                reset = reset.index_select(1, sorted_indices)
        if hx is not None:
            _checks.check_pair(self._kind, hx, 3)
            _checks.check_states(self._kind, hx, self.num_layers, self.bidirectional, batch, self.hidden_size)
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

    def _compute_parameters(self) -> None:
        """Run the hooks that compute parameters, which only a call of the module runs by itself."""
        if not torch.jit.is_scripting():
            _hooks.compute_parameters(self, chain.from_iterable(self._parameter_names()))

    def _padded_states(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None, lengths: Tensor | None, reset: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        self._compute_parameters()
        output, state, h, c = self._run_padded(input, hx, lengths, reset, True)
        return output, state, (torch.stack(h), torch.stack(c))

    def _packed_states(
        self, input: PackedSequence, hx: tuple[Tensor, Tensor] | None, lengths: Tensor | None, reset: Tensor | None
    ) -> tuple[PackedSequence, tuple[Tensor, Tensor], tuple[PackedSequence, PackedSequence]]:
        self._compute_parameters()
        output, state, h, c = self._run_packed(input, hx, lengths, reset, True)
        return output, state, (_packed.like(input, torch.stack(h, 1)), _packed.like(input, torch.stack(c, 1)))

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
                h0: Tensor | None = None
                c0: Tensor | None = None
                if hx is not None:
                    h0, c0 = hx[0][index], hx[1][index]
                if segments is None:
                    output, h, c, cells = self._run_direction(
                        input, parameters, index, h0, c0, lengths, resets[direction], direction == 1, keep
                    )
                else:
                    output, h, c, cells = self._run_segments(
                        segments, input, parameters, index, h0, c0, resets[direction], direction == 1, keep
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

    @torch.jit.unused
    def _run_segments(
        self,
        segments: list[_packed.Segment],
        data: Tensor,
        parameters: list[Tensor],
        index: int,
        h0: Tensor | None,
        c0: Tensor | None,
        reset: Tensor | None,
        reverse: bool,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Like _run_direction, by one call per segment. Input, output and cells are packed."""
        shape = (segments[0].sequences, self.hidden_size)
        # 16-bit cell states are carried in float32, as within a call.
        carried = torch.float64 if data.dtype == torch.float64 else torch.float32
        first_h = data.new_zeros(shape) if h0 is None else h0
        if c0 is None:
            first_c = data.new_zeros(shape, dtype=carried)
        else:
            # The operator refuses a c0 of any other dtype.
            first_c = c0.to(carried) if c0.dtype == _checks.dtype_of_call(data) else c0
        outputs: list[Tensor] = []
        cells_of_steps: list[Tensor] = []

        def run(segment: _packed.Segment, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
            steps, batch, rows = segment.steps, segment.sequences, segment.rows
            padded = _packed.pad(data[segment.first_row : segment.first_row + rows.size(0)], rows, steps, batch)
            resets = None if reset is None else reset[segment.first_step : segment.first_step + steps, :batch]
            output, h, c, cells = self._run_direction(
                padded, parameters, index, h, c, segment.lengths, resets, reverse, keep
            )
            outputs.append(_packed.pack(output, rows))
            if keep:
                cells_of_steps.append(_packed.pack(cells, rows))
            return h, c

        if reverse:
            h, c = first_h[:0], first_c[:0]
            for segment in segments[::-1]:
                # Sequences that end in this segment begin here.
                begin = slice(h.size(0), segment.sequences)
                h, c = run(segment, torch.cat([h, first_h[begin].to(h.dtype)]), torch.cat([c, first_c[begin]]))
            outputs.reverse()
            cells_of_steps.reverse()
        else:
            ended = []
            h, c = first_h, first_c
            for segment, going_on in zip(
                segments, [*(following.sequences for following in segments[1:]), 0], strict=True
            ):
                h, c = run(segment, h, c)
                ended.append((h[going_on:], c[going_on:]))
                h, c = h[:going_on], c[:going_on]
            h, c = (torch.cat(states[::-1]) for states in zip(*ended, strict=True))
        cells = torch.cat(cells_of_steps) if keep else data.new_empty(0)
        return torch.cat(outputs), h, c.to(h.dtype if c0 is None else c0.dtype), cells

    def _check_input(self, input: Tensor, weights: Tensor) -> None:
        """Check the dtype and number of features of the input, padded or packed."""
        if not torch.jit.is_scripting():
            dtype = weights.dtype
            if input.dtype != dtype and not _checks.autocasts(input.device.type):
                message = f"{self._kind}: input dtype ({input.dtype}) does not match weight dtype ({dtype}). "
                message += f"Convert the input: input.to({dtype})"
                if input.is_floating_point():
                    message += f", or the module: module.to({input.dtype})"
                raise ValueError(message)
        if not torch.jit.is_tracing() and input.size(-1) != self.input_size:
            raise RuntimeError(
                f"{self._kind}: input.size(-1) must be equal to input_size. "
                f"Expected {self.input_size}, got {input.size(-1)}"
            )

    def extra_repr(self) -> str:
        parts = [str(self.input_size), str(self.hidden_size)]
        for name, default in self._options.items():
            if getattr(self, name) != default:
                parts.append(f"{name}={getattr(self, name)}")
        return ", ".join(parts)


class CellOfTorch(torch.nn.RNNCellBase):
    """What :class:`LSTMCell` and :class:`GRUCell` have in common. Their other base is that of torch.nn."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)  # type: ignore[arg-type]
        self._prepare()

    def _prepare(self) -> None:
        _checks.use_types_of_python(self, ("input_size", "hidden_size"), int)
        _checks.use_types_of_python(self, ("bias",), bool)
        _leaf.pose_as_torch_nn(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        _leaf.pose_as_torch_nn(self)

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing, unexpected, errors) -> None:  # type: ignore[no-untyped-def]
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, errors)
        _checks.refuse_lltm(self, state_dict, prefix, errors)


def load_from_state_dict(module: torch.nn.Module, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
    """That of nn.Module, for a Recurrent or a scripted one, whose list gets the parameters of assign=True."""
    before = dict(module.named_parameters(recurse=False))
    torch.nn.Module._load_from_state_dict(module, state_dict, prefix, *arguments)
    if isinstance(module, torch.jit.ScriptModule):
        replaced = {id(parameter): getattr(module, name) for name, parameter in before.items()}
        listed: Any = module._layer_parameters
        module._layer_parameters = [replaced.get(id(parameter), parameter) for parameter in listed]


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
        # (T, 1), and a DTensor where lengths are one, as arange() is not.
        next_step = lengths.new_ones(reset.size(0), 1).cumsum(0)
        shifted = shifted & (next_step < lengths)
    return shifted
