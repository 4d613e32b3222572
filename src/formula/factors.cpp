#include "factors.h"

#include "rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>

namespace lltm::formula {
namespace {

/// sigmoid(z) and its derivatives. All are computed from sigmoid(-|z|): of an s that is almost 1,
/// s*(1-s), which also is how ATen differentiates at::sigmoid, has nothing left of the tail.
struct Sigmoid {
  explicit Sigmoid(const Tensor& z) {
    const Tensor is_positive = z.ge(0);
    const Tensor tail = at::sigmoid(at::where(is_positive, -z, z));
    value = at::where(is_positive, complement(tail), tail);
    derivative = tail * complement(tail);
  }
  Tensor second_derivative() const { return derivative * complement(2 * value); }

  Tensor value;
  Tensor derivative;
};

/// new_h = tanh(new_cell) * o, in the LLTM and the LSTM.
class Output {
 public:
  Output(const Tensor& z, const Tensor& cells) : gate_(z), tanh_(at::tanh(accumulated(cells))) {}

  Tensor by_z() const { return tanh_ * gate_.derivative; }
  Tensor by_cell() const { return gate_.value * tanh_derivative(); }
  Tensor z_gradient(const Tensor& d_by_z, const Tensor& d_by_cell) const {
    return d_by_z * tanh_ * gate_.second_derivative() +
           d_by_cell * tanh_derivative() * gate_.derivative;
  }
  Tensor cell_gradient(const Tensor& d_by_z, const Tensor& d_by_cell) const {
    return (d_by_z * gate_.derivative - 2 * d_by_cell * gate_.value * tanh_) * tanh_derivative();
  }

 private:
  Tensor tanh_derivative() const { return complement(tanh_ * tanh_); }

  Sigmoid gate_;
  Tensor tanh_;
};

class LltmFactors final : public Factors {
 public:
  LltmFactors(const Tensor& z, const std::vector<Tensor>& gates, const Tensor& cells)
      : dtype_(z.scalar_type()),
        i_(gates[0]),
        output_(gates[1], cells),
        z_g_(gates[2]),
        g_(at::elu(z_g_)),
        // exp of a large z is infinite, and its gradient would be NaN. At z = 0, the second
        // derivative is 0, as that of at::elu.
        g_derivative_(at::exp(at::where(z_g_.ge(0), 0, z_g_))) {
    by_z = {g_ * i_.derivative, output_.by_z(), i_.value * g_derivative_};
    output_gate = 1;
    h_by_cell = output_.by_cell();
  }

  FactorGradients backward(const std::vector<Tensor>& d_by_z,
                           const Tensor& d_h_by_cell,
                           const Tensor& /*d_cell_by_old*/) const override {
    const Tensor g_second_derivative = at::where(z_g_.lt(0), g_derivative_, 0);
    const Tensor d_i =
        d_by_z[0] * g_ * i_.second_derivative() + d_by_z[2] * g_derivative_ * i_.derivative;
    const Tensor d_g =
        d_by_z[0] * i_.derivative * g_derivative_ + d_by_z[2] * i_.value * g_second_derivative;
    return {.z = at::cat({d_i, output_.z_gradient(d_by_z[1], d_h_by_cell), d_g}, 2).to(dtype_),
            .cells = output_.cell_gradient(d_by_z[1], d_h_by_cell),
            .old_cells = {}};
  }

 private:
  at::ScalarType dtype_;
  Sigmoid i_;
  Output output_;
  Tensor z_g_, g_, g_derivative_;
};

class LstmFactors final : public Factors {
 public:
  LstmFactors(const Tensor& z,
              const std::vector<Tensor>& gates,
              const Tensor& cells,
              const Tensor& old_cells)
      : dtype_(z.scalar_type()),
        i_(gates[0]),
        f_(gates[1]),
        g_(at::tanh(gates[2])),
        output_(gates[3], cells),
        old_cells_(accumulated(old_cells)) {
    by_z = {
        g_ * i_.derivative, old_cells_ * f_.derivative, i_.value * g_derivative(), output_.by_z()};
    output_gate = 3;
    h_by_cell = output_.by_cell();
    cell_by_old = f_.value;
  }

  FactorGradients backward(const std::vector<Tensor>& d_by_z,
                           const Tensor& d_h_by_cell,
                           const Tensor& d_cell_by_old) const override {
    const Tensor d_i =
        d_by_z[0] * g_ * i_.second_derivative() + d_by_z[2] * g_derivative() * i_.derivative;
    const Tensor d_f =
        d_by_z[1] * old_cells_ * f_.second_derivative() + d_cell_by_old * f_.derivative;
    const Tensor d_g = (d_by_z[0] * i_.derivative - 2 * d_by_z[2] * i_.value * g_) * g_derivative();
    const Tensor d_o = output_.z_gradient(d_by_z[3], d_h_by_cell);
    return {.z = at::cat({d_i, d_f, d_g, d_o}, 2).to(dtype_),
            .cells = output_.cell_gradient(d_by_z[3], d_h_by_cell),
            .old_cells = d_by_z[1] * f_.derivative};
  }

 private:
  Tensor g_derivative() const { return complement(g_ * g_); }

  at::ScalarType dtype_;
  Sigmoid i_, f_;
  Tensor g_;
  Output output_;
  Tensor old_cells_;
};

/// new_h = n + z (old_h - n), n = tanh(x_n + r s_n).
class GruFactors final : public Factors {
 public:
  GruFactors(const Tensor& z, const std::vector<Tensor>& saved, const Tensor& old_h)
      : dtype_(z.scalar_type()),
        r_(saved[0]),
        z_(saved[1]),
        s_n_(saved[3]),
        n_(at::tanh(saved[2] + r_.value * s_n_)),
        n_derivative_(complement(n_ * n_)),
        one_minus_z_(at::sigmoid(-saved[1])),
        by_n_(one_minus_z_ * n_derivative_),
        to_old_h_(accumulated(old_h) - n_) {
    by_z = {by_n_ * s_n_ * r_.derivative, to_old_h_ * z_.derivative, by_n_, by_n_ * r_.value};
    cell_by_old = z_.value;
  }

  FactorGradients backward(const std::vector<Tensor>& d_by_z,
                           const Tensor& /*d_h_by_cell*/,
                           const Tensor& d_cell_by_old) const override {
    const Tensor d_by_n = d_by_z[0] * s_n_ * r_.derivative + d_by_z[2] + d_by_z[3] * r_.value;
    const Tensor d_z_derivative = d_by_z[1] * z_.derivative;
    // Of n, through to_old_h_ and by_n_, and then of x_n + r s_n.
    const Tensor d_sum = -(d_z_derivative + 2 * d_by_n * one_minus_z_ * n_) * n_derivative_;
    const Tensor d_r = (d_sum * s_n_ + d_by_z[3] * by_n_) * r_.derivative +
                       d_by_z[0] * by_n_ * s_n_ * r_.second_derivative();
    const Tensor d_z = (d_cell_by_old - d_by_n * n_derivative_) * z_.derivative +
                       d_by_z[1] * to_old_h_ * z_.second_derivative();
    const Tensor d_s_n = d_sum * r_.value + d_by_z[0] * by_n_ * r_.derivative;
    return {.z = at::cat({d_r, d_z, d_sum, d_s_n}, 2).to(dtype_),
            .cells = {},
            .old_cells = d_z_derivative};
  }

 private:
  at::ScalarType dtype_;
  Sigmoid r_, z_;
  Tensor s_n_, n_, n_derivative_, one_minus_z_, by_n_, to_old_h_;
};

}  // namespace

std::unique_ptr<Factors> Factors::of(const CellDescriptor& cell,
                                     const Tensor& z,
                                     const Tensor& cells,
                                     const Tensor& old_cells) {
  const std::vector<Tensor> saved = accumulated(z).chunk(cell.saved, /*dim=*/2);
  switch (cell.type) {
    case CellType::kLltm:
      return std::make_unique<LltmFactors>(z, saved, cells);
    case CellType::kLstm:
      return std::make_unique<LstmFactors>(z, saved, cells, old_cells);
    case CellType::kGru:
      return std::make_unique<GruFactors>(z, saved, old_cells);
  }
  return nullptr;
}

}  // namespace lltm::formula
