"""Error bounds for the results of the operators: a running error analysis in float64, alongside the formula itself.

Most tolerances of values come from here. A `Bounded` is a value in float64 and a bound on the error of the same
quantity when it is computed in another dtype. Its operations are those of the cell. Each adds

- the errors that its operands propagate to the result, by the largest slope between the exact and the inexact operand.
  The logarithms of the slopes of sigmoid, of ELU and of sigmoid's slope change by at most 1 when the operand changes by
  1, that of tanh by at most 2, hence the factors expm1(error) and expm1(2 * error) / 2;
- its own rounding, in units of twice the unit roundoff of the dtype that it is computed in (`finfo.eps`; float32 for
  16-bit types): twice, because a tensor core truncates where an FPU rounds to nearest, and because the float64
  reference is rounded, too.

**Sums.** In any order of summation, the error of a sum of n products is at most the number of roundings times the unit
times the largest partial sum. Let Q be the root of the sum of the squares of the products. No partial sum exceeds
|result| + sqrt(n) Q (Cauchy-Schwarz), and n roundings add up to n units. Beyond 64 terms this bound is true but
useless: independent terms and roundings accumulate like random walks. There, both use 8 standard deviations: 8 instead
of sqrt(n), and 8 sqrt(n) instead of n. With reach(n) = min(sqrt(n), 8), the error of a sum is

    reach(n) R  +  (reach(n) sqrt(n) + 8) unit (|result| + reach(n) Q)

where R is defined like Q, for the errors of the terms. Up to 64 terms the bound is a theorem. Beyond that it holds for
terms with independent errors; those of 100 copies of one row are not independent. The 8 units stand for a constant
number of roundings in addition to those of the sum: a product made of three TF32 products, the addition of the bias,
one more rounding if the result passes through memory. In TF32 each factor is rounded or truncated to 11 bits, which
adds 2 * 2^-10 (|result| + reach(n) Q). cuBLAS may add parts of a 16-bit product in 16 bits ("reduced"), which adds that
many of their own units.

**Underflow.** Many instructions replace subnormal numbers with zero: those for products of bfloat16 on the CPU, and the
exponential that the CUDA kernels use for 16 bits and TF32. Hence every operation may also be off by the smallest normal
number of the accumulation type, 1e-38 in float32, and that error propagates like any other. It matters in float64,
float32 and bfloat16, where a slope such as exp(-88) times a large gradient is a normal number again, or is compared
with a bound of its own size. In float16 it is far below the smallest number.

The theorems are in N. J. Higham, Accuracy and Stability of Numerical Algorithms (2002), chapters 3 and 4, the random
walks in N. J. Higham and T. Mary, A New Approach to Probabilistic Rounding Error Analysis (SIAM J. Sci. Comput. 41,
2019).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

# The error of an elementwise function in units: exp, expm1, tanh and a division, at 1 to 3 units each.
FUNCTION_UNITS = 8
SMALLEST_SQUARE = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Precision:
    """The arithmetic behind a dtype of tensors."""

    dtype: torch.dtype
    unit: float
    """The unit of the accumulation type."""
    storage_unit: float
    underflow: float
    """The smallest normal number of the accumulation type: numbers below may become zero."""
    smallest: float
    """The absolute error of a stored number: the distance between the smallest ones, or `underflow` if it is larger."""
    product_unit: float
    """The additional unit of products, beyond `unit`."""

    @staticmethod
    def of(dtype: torch.dtype, tf32: bool = False, reduced: bool = False) -> "Precision":
        storage = torch.finfo(dtype)
        accumulation = storage if dtype == torch.float64 else torch.finfo(torch.float32)
        product_unit = 0.0
        if tf32 and dtype == torch.float32:
            product_unit = 2 * 2.0**-10
        elif reduced and dtype.itemsize == 2:
            product_unit = storage.eps
        smallest = max(storage.tiny * storage.eps, accumulation.tiny)
        return Precision(dtype, accumulation.eps, storage.eps, accumulation.tiny, smallest, product_unit)

    def rounding(self, value: Tensor, units: Tensor | float = 1.0) -> Tensor:
        """The error of an operation itself, with this result."""
        return units * self.unit * value.abs() + self.underflow

    def exact(self, tensor: Tensor | None) -> "Bounded | None":
        """An argument, which has no error."""
        return None if tensor is None else Bounded(tensor.detach().double(), 0.0, self)


@dataclass(frozen=True)
class Bounded:
    value: Tensor
    error: Tensor | float
    precision: Precision

    def _result(self, value: Tensor, error: Tensor | float) -> "Bounded":
        return Bounded(value, error, self.precision)

    def __add__(self, other: "Bounded") -> "Bounded":
        value = self.value + other.value
        return self._result(value, self.error + other.error + self.precision.rounding(value))

    def __neg__(self) -> "Bounded":
        return self._result(-self.value, self.error)

    def __sub__(self, other: "Bounded") -> "Bounded":
        return self + -other

    def __mul__(self, other: "Bounded") -> "Bounded":
        value = self.value * other.value
        a, b = self.value.abs(), other.value.abs()
        return self._result(value, (a + self.error) * other.error + b * self.error + self.precision.rounding(value))

    def __matmul__(self, other: "Bounded") -> "Bounded":
        """The product of two matrices; `other` is exact."""
        return self.product(other)

    def product(self, other: "Bounded", start: "Bounded | None" = None) -> "Bounded":
        """start + self @ other. A kernel may add `start` first or last."""
        return self._sum(
            self.value @ other.value, self.value.size(-1), lambda squares: squares @ other.value.square(), start
        )

    def sum_of_rows(self) -> "Bounded":
        return self._sum(self.value.sum(0), self.value.size(0), lambda squares: squares.sum(0))

    def _sum(self, value: Tensor, terms: int, sum_of_squares, start: "Bounded | None" = None) -> "Bounded":
        """A sum of `terms` products with factors from self; sum_of_squares multiplies squares by the other factors."""
        precision = self.precision
        # Squares underflow as well: in float64, those of numbers below 1e-154, whose errors must still be allowed.
        squares = sum_of_squares(self.value.square() + SMALLEST_SQUARE)
        errors = 0.0 if isinstance(self.error, float) else sum_of_squares(self.error.square() + SMALLEST_SQUARE)
        if start is not None:
            terms += 1
            value = value + start.value
            squares = squares + start.value.square()
            errors = errors + start.error * start.error
        reach = min(math.sqrt(terms), 8.0)
        partial_sum = value.abs() + reach * squares.sqrt()
        roundings = (reach * math.sqrt(terms) + 8) * precision.unit + precision.product_unit
        # Each product may underflow, and each addition.
        underflows = 2 * terms * precision.underflow
        return self._result(value, roundings * partial_sum + reach * errors**0.5 + underflows)

    def t(self) -> "Bounded":
        return self._result(self.value.t(), self.error if isinstance(self.error, float) else self.error.t())

    def split(self, sizes: int | list[int]) -> tuple["Bounded", ...]:
        """Blocks of columns."""
        values = self.value.split(sizes, dim=-1)
        errors = [self.error] * len(values) if isinstance(self.error, float) else self.error.split(sizes, dim=-1)
        return tuple(map(self._result, values, errors))

    def stored(self) -> "Bounded":
        """The value as it may be rounded to the tensors' dtype. Kernels may keep intermediate values unrounded.

        A value that may be infinite in that dtype has no bound, and neither has what is computed from it.
        """
        precision = self.precision
        if precision.storage_unit == precision.unit:
            return self
        error = self.error + (precision.storage_unit * self.value.abs() + precision.smallest)
        may_overflow = self.value.abs() + error > torch.finfo(precision.dtype).max
        return self._result(self.value, torch.where(may_overflow, torch.inf, error))

    def cast(self, dtype: torch.dtype) -> "Bounded":
        """The stored value, converted to another dtype, as autocast converts gradients."""
        stored = self.stored()
        return Bounded(stored.value, stored.error, Precision.of(dtype)) if dtype != self.precision.dtype else self

    def _growth(self, rate: float = 1.0) -> Tensor | float:
        """The largest relative change of a slope whose logarithm changes by `rate`; finite."""
        if isinstance(self.error, float):
            return math.expm1(rate * self.error)
        return torch.expm1((rate * self.error).clamp(max=50.0))

    def sigmoid(self) -> "Bounded":
        value = torch.sigmoid(self.value)
        error = value * torch.sigmoid(-self.value) * self._growth()
        return self._result(value, error + self.precision.rounding(value, FUNCTION_UNITS))

    def sigmoid_slope(self) -> "Bounded":
        value = torch.sigmoid(self.value) * torch.sigmoid(-self.value)
        return self._result(value, value * self._growth() + self.precision.rounding(value, self._exponential_units()))

    def elu(self) -> "Bounded":
        value = torch.nn.functional.elu(self.value)
        slope = torch.exp(self.value.clamp(max=0))
        return self._result(value, slope * self._growth() + self.precision.rounding(value, FUNCTION_UNITS))

    def elu_slope(self) -> "Bounded":
        value = torch.exp(self.value.clamp(max=0))
        return self._result(value, value * self._growth() + self.precision.rounding(value, self._exponential_units()))

    def _exponential_units(self) -> Tensor:
        """If an exponential is computed as a power of two, the rounding of the operand grows with the operand."""
        return FUNCTION_UNITS + self.value.abs()

    def tanh(self) -> "Bounded":
        value = torch.tanh(self.value)
        error = torch.cosh(self.value).pow(-2) * (self._growth(2.0) / 2)
        return self._result(value, error + self.precision.rounding(value, FUNCTION_UNITS))

    def tanh_slope(self) -> "Bounded":
        """1 - tanh^2. It cancels, so its rounding error is absolute."""
        value = torch.cosh(self.value).pow(-2)
        return self._result(value, value * self._growth(2.0) + FUNCTION_UNITS * self.precision.unit)

    def excess(self, actual: Tensor, finite: bool = True) -> Tensor:
        """The largest error of `actual` as a fraction of the bound: up to 1 is correct, NaN and more are wrong.

        The result is 0-dimensional and on the device of `actual`, which avoids waiting for a GPU. If the arguments are
        not `finite`, `actual` must be finite exactly where the formula is. NaN and infinity may be interchanged: a
        slope that is tiny in float64 can be zero in float32, and infinity times zero is NaN.
        """
        if self.value.numel() == 0:
            return self.value.new_zeros(())
        stored = self.stored()
        actual = actual.detach().to(self.value)
        bound = stored.error + self.precision.smallest
        excess = (actual - stored.value).abs() / bound
        if finite:
            excess = torch.where(bound.isfinite(), excess, 0.0)
        else:
            # Next to infinite values, there may be no bound.
            excess = torch.where(excess.isnan() & actual.isfinite(), 0.0, excess)
            excess = torch.where(self.value.isfinite(), excess, torch.where(actual.isfinite(), torch.inf, 0.0))
        return excess.max()


def cat(*blocks: Bounded) -> Bounded:
    """Concatenates blocks of columns."""
    errors = [
        torch.full_like(block.value, block.error) if isinstance(block.error, float) else block.error for block in blocks
    ]
    return Bounded(torch.cat([block.value for block in blocks], dim=-1), torch.cat(errors, dim=-1), blocks[0].precision)


def lltm(z_i: Bounded, z_o: Bounded, z_g: Bounded, old_cell: Bounded) -> tuple[Bounded, Bounded]:
    new_cell = old_cell + z_g.elu() * z_i.sigmoid()
    return new_cell.tanh() * z_o.sigmoid(), new_cell


def lltm_gradients(dh, dc, new_cell, z_i, z_o, z_g) -> tuple[Bounded, ...]:
    d_cell = dc + dh * z_o.sigmoid() * new_cell.tanh_slope()
    dz_i = d_cell * z_g.elu() * z_i.sigmoid_slope()
    dz_o = dh * new_cell.tanh() * z_o.sigmoid_slope()
    dz_g = d_cell * z_i.sigmoid() * z_g.elu_slope()
    return dz_i, dz_o, dz_g, d_cell


def lstm(z_i: Bounded, z_f: Bounded, z_g: Bounded, z_o: Bounded, old_cell: Bounded) -> tuple[Bounded, Bounded]:
    new_cell = z_f.sigmoid() * old_cell + z_i.sigmoid() * z_g.tanh()
    return new_cell.tanh() * z_o.sigmoid(), new_cell


def lstm_gradients(dh, dc, new_cell, z_i, z_f, z_g, z_o, old_cell) -> tuple[Bounded, ...]:
    d_cell = dc + dh * z_o.sigmoid() * new_cell.tanh_slope()
    dz_i = d_cell * z_g.tanh() * z_i.sigmoid_slope()
    dz_f = d_cell * old_cell * z_f.sigmoid_slope()
    dz_g = d_cell * z_i.sigmoid() * z_g.tanh_slope()
    dz_o = dh * new_cell.tanh() * z_o.sigmoid_slope()
    return dz_i, dz_f, dz_g, dz_o, d_cell * z_f.sigmoid()


class Cell(NamedTuple):
    """A step: the product that the gates are, and the cell, which has no other products."""

    gates: int
    matrices: int
    """1 if the columns of the input follow those of the state, 2 if the input has a matrix of its own, the first."""
    state: Callable[..., tuple[Bounded, Bounded]]
    """new_h and new_cell of the gates and old_cell."""
    gradients: Callable[..., tuple[Bounded, ...]]
    """Those of the gates and of old_cell. Of those of new_h and new_cell, of new_cell and the gates, and, unless there
    is one matrix, of old_cell."""

    def split(self, gates: Bounded) -> tuple[Bounded, ...]:
        return gates.split([gates.value.size(-1) // self.gates] * self.gates)

    def forward(self, input: Bounded, *others: Bounded | None) -> tuple[Bounded, Bounded, Bounded]:
        """new_h, new_cell and gates of the input, the weights, the bias, old_h and old_cell."""
        *weights, bias, old_h, old_cell = others
        gates = cat(old_h, input).product(cat(*reversed(weights)).t(), start=bias)
        return *self.state(*self.split(gates.stored()), old_cell), gates

    def backward(
        self,
        grad_h: Bounded | None,
        grad_cell: Bounded | None,
        new_cell: Bounded,
        gates: Bounded,
        input: Bounded,
        *others: Bounded,
    ) -> tuple[Bounded, ...]:
        """The gradients of input, weights, bias, old_h and old_cell. `others` are the weights, old_h, and old_cell if
        the cell reads it."""
        weights, (old_h, *old_cell) = others[: self.matrices], others[self.matrices :]
        nothing = Bounded(torch.zeros_like(new_cell.value), 0.0, new_cell.precision)
        *dz, d_old_cell = self.gradients(
            grad_h or nothing, grad_cell or nothing, new_cell, *self.split(gates), *old_cell
        )
        dz, columns = cat(*dz).stored(), [old_h.value.size(-1), input.value.size(-1)]
        d_old_h, d_input = (dz @ cat(*reversed(weights))).split(columns)
        d_weights = dz.t() @ cat(old_h, input)
        d_weights = reversed(d_weights.split(columns)) if self.matrices == 2 else [d_weights]
        return d_input, *d_weights, dz.sum_of_rows(), d_old_h, d_old_cell


LLTM = Cell(3, 1, lltm, lltm_gradients)
LSTM = Cell(4, 2, lstm, lstm_gradients)


class Gru:
    """A step of a GRU, whose gates are four: the candidate's are what x and what h give it. The same functions as
    Cell's, without a cell."""

    matrices = 2

    @staticmethod
    def forward(input: Bounded, *others: Bounded | None) -> tuple[Bounded, Bounded]:
        """new_h and gates."""
        weight_ih, weight_hh, bias_ih, bias_hh, old_h = others
        w_ih, w_hh = (Gru._halves(weight.t()) for weight in (weight_ih, weight_hh))
        b_ih, b_hh = (Gru._halves(bias) if bias is not None else (None, None) for bias in (bias_ih, bias_hh))
        biases = b_ih[0] + b_hh[0] if bias_ih is not None and bias_hh is not None else b_ih[0] or b_hh[0]
        both = Bounded(torch.cat([w_ih[0].value, w_hh[0].value]), 0.0, w_ih[0].precision)
        gates = cat(
            cat(input, old_h).product(both, start=biases),
            input.product(w_ih[1], start=b_ih[1]),
            old_h.product(w_hh[1], start=b_hh[1]),
        )
        s_r, s_z, x_n, s_n = gates.stored().split(old_h.value.size(-1))
        n = (x_n + s_r.sigmoid() * s_n).tanh()
        return n + s_z.sigmoid() * (old_h - n), gates

    @staticmethod
    def backward(grad_h: Bounded | None, gates: Bounded, input: Bounded, *others: Bounded) -> tuple[Bounded, ...]:
        """The gradients of input, weights, biases and old_h. `others` are the weights and old_h."""
        weight_ih, weight_hh, old_h = others
        s_r, s_z, x_n, s_n = gates.split(old_h.value.size(-1))
        grad_h = grad_h or Bounded(torch.zeros_like(old_h.value), 0.0, old_h.precision)
        r, z, sum_n = s_r.sigmoid(), s_z.sigmoid(), x_n + s_r.sigmoid() * s_n
        d_n = grad_h * (-s_z).sigmoid() * sum_n.tanh_slope()
        d_z = grad_h * (old_h - sum_n.tanh()) * s_z.sigmoid_slope()
        d_r = d_n * s_n * s_r.sigmoid_slope()
        of_x, of_h = (cat(d_r, d_z, d).stored() for d in (d_n, d_n * r))
        d_old_h = of_h.product(weight_hh, start=grad_h * z)
        weights = of_x.t() @ input, of_h.t() @ old_h
        return of_x @ weight_ih, *weights, of_x.sum_of_rows(), of_h.sum_of_rows(), d_old_h

    @staticmethod
    def _halves(rows: Bounded) -> tuple[Bounded, ...]:
        """Of the gates, to which x and h are added, and of the candidate."""
        state_size = rows.value.size(-1) // 3
        return rows.split([2 * state_size, state_size])


GRU = Gru()
