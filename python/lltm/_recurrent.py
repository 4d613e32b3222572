"""What the recurrent layers have in common: nn.LSTM's interface, over one operator call for all layers."""

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn.modules import rnn as torch_rnn
from torch.nn.utils.rnn import PackedSequence

from . import _checks, _leaf

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

    A subclass names its parameters, gives their shapes, and calls its operator. It declares the overloads of
    ``forward`` and ``states``, because TorchScript finds them by the name of the class that is compiled.
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
    __jit_ignored_attributes__ = ["_names"]
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
    _names: list[str]
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
        self._names = list(chain.from_iterable(self._parameter_names()))
        _leaf.pose_as_torch_nn(self)

    def _parameter_shapes(self, features: int) -> list[tuple[int, ...]]:
        """The shapes of the parameters of a direction with this many features, those of the biases last."""
        raise NotImplementedError

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
        """Call the operator. Returns output, h_n and c_n and, if they are kept, h and c of every step."""
        raise NotImplementedError

    def _parameter_names(self) -> list[list[str]]:
        """The names of the parameters of each layer and, within a layer, each direction."""
        kinds = self._weight_kinds + (self._bias_kinds if self.bias else ())
        suffixes = ("", "_reverse") if self.bidirectional else ("",)
        return [[f"{kind}_l{k}{suffix}" for kind in kinds] for k in range(self.num_layers) for suffix in suffixes]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._prepare()  # pickled by a version of lltm that had other attributes

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
            own: Any = self._parameters
            return [own[name] if name in own else getattr(self, name) for name in self._names]

    def _check_dtype(self, input: Tensor, weights: Tensor) -> None:
        if not torch.jit.is_scripting():
            dtype = weights.dtype
            if input.dtype != dtype and not _checks.autocasts(input.device.type):
                message = f"{self._kind}: input dtype ({input.dtype}) does not match weight dtype ({dtype}). "
                message += f"Convert the input: input.to({dtype})"
                if input.is_floating_point():
                    message += f", or the module: module.to({input.dtype})"
                raise ValueError(message)

    def _run_padded(
        self,
        input: Tensor,
        hx: tuple[Tensor, Tensor] | None,
        lengths: Tensor | None,
        reset: Tensor | None,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """The results of _run_layers(). What is not checked here, the operator checks."""
        if not torch.jit.is_scripting():
            _checks.check_input_kind(self._kind, input)
        if input.dim() != 2 and input.dim() != 3:  # where a tracer of torch.fx says that it cannot trace into this
            raise ValueError(f"{self._kind}: Expected input to be 2D or 3D, got {input.dim()}D instead")
        if not torch.jit.is_scripting():
            _checks.check_kinds(self._kind, hx, lengths, reset)
        return self._run_layers(input, hx, lengths, reset, None, None, None, keep)

    def _run_packed(
        self,
        input: PackedSequence,
        hx: tuple[Tensor, Tensor] | None,
        lengths: Tensor | None,
        reset: Tensor | None,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """The same for a PackedSequence, with the data of those of the results."""
        if not torch.jit.is_scripting():
            _checks.refuse_to_export(self._kind)
            _checks.check_kinds(self._kind, hx, lengths, reset)
        data, batch_sizes, sorted_indices, unsorted_indices = input
        return self._run_layers(data, hx, lengths, reset, batch_sizes, sorted_indices, unsorted_indices, keep)

    def _padded_states(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None, lengths: Tensor | None, reset: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        output, h_n, c_n, states = self._run_padded(input, hx, lengths, reset, True)
        return output, (h_n, c_n), (states[0], states[1])

    def _packed_states(
        self, input: PackedSequence, hx: tuple[Tensor, Tensor] | None, lengths: Tensor | None, reset: Tensor | None
    ) -> tuple[PackedSequence, tuple[Tensor, Tensor], tuple[PackedSequence, PackedSequence]]:
        output, h_n, c_n, states = self._run_packed(input, hx, lengths, reset, True)
        return like(input, output), (h_n, c_n), (like(input, states[0]), like(input, states[1]))

    def extra_repr(self) -> str:
        parts = [str(self.input_size), str(self.hidden_size)]
        for name, default in self._options.items():
            if getattr(self, name) != default:
                parts.append(f"{name}={getattr(self, name)}")
        return ", ".join(parts)


# Not derived from nn.LSTM and nn.GRU: Dynamo breaks the graph at every instance of nn.RNN, nn.GRU and nn.LSTM
# (torch/_dynamo/variables/builder.py). Newer versions of PyTorch may lift that. Derived from nn.RNNBase, because
# programs ask for it, such as initializers, and derive from it and a patched torch.nn.LSTM.
class LayersOfTorch(Recurrent, torch_rnn.RNNBase):  # type: ignore[misc]
    """What :class:`LSTM` and :class:`GRU` have in common."""

    _weight_kinds = ("weight_ih", "weight_hh")
    _bias_kinds = ("bias_ih", "bias_hh")
    _gates: ClassVar[int]

    # Those of nn.RNNBase maintain lists of its weights, which these modules do not have.
    _apply = torch.nn.Module._apply
    _replicate_for_data_parallel = torch.nn.Module._replicate_for_data_parallel

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    @torch.jit.unused  # binds it to scripted modules, too, which are no instances of this class
    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing, unexpected, errors) -> None:  # type: ignore[no-untyped-def]
        load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing, unexpected, errors)
        _checks.refuse_lltm(self, state_dict, prefix, errors)

    def _parameter_shapes(self, features: int) -> list[tuple[int, ...]]:
        rows = self._gates * self.hidden_size
        return [(rows, features), (rows, self.hidden_size), (rows,), (rows,)]


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


def like(packed: PackedSequence, data: Tensor) -> PackedSequence:
    """Other data of the same sequences."""
    return PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)


def outside_of_exports(operator: Any) -> Any:
    """The operator of all layers; while torch.export traces, which would keep it, what it is composed of."""
    if torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling():
        return _take_apart(operator.default)
    return operator.default


def _take_apart(operator: Any) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        with torch._C.DisableTorchFunction():  # the mode with which torch.export traces records the operator itself
            return operator.decompose(*arguments)

    return call
