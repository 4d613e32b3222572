// The backward pass of a sequence with the kernels of kernels/kernels.h: what is computed when.
#pragma once

#include "../../cell/descriptor.h"
#include "../kernels/kernels.h"
#include "../schedule.h"
#include "arrays.h"

#include <cstdint>

namespace lltm::cpu {

/// Plain pointers are to contiguous arrays.
template <typename scalar_t>
struct SequenceBackward {
  const CellDescriptor& cell;
  Steps steps;
  SequenceInput<scalar_t> input;
  int64_t state_size;
  int64_t gate_columns;   // the number of gates times state_size
  int64_t saved_columns;  // the same of the numbers that the cell saves
  WeightColumns<scalar_t> weight_ih;
  WeightColumns<scalar_t> weight_hh;
  const scalar_t* h0;                      // (batch, state_size), or null for zeros
  const scalar_t* c0;                      // (batch, state_size), or null for zeros
  const accumulate_t<scalar_t>* exact_c0;  // in its place, if it is not rounded
  const scalar_t* output;                  // (steps, batch, state_size)
  const scalar_t* cells;                   // (steps, batch, state_size)
  const scalar_t* gates;                   // (steps, batch, saved_columns)
  StepRows<scalar_t> grad_output;          // (steps, batch, state_size), or null for zero
  StepRows<scalar_t> grad_cells;           // (steps, batch, state_size), or null for zero
  const scalar_t* grad_h_n;                // (batch, state_size), or null for zero
  CellsIn<scalar_t> grad_c_n;
  // Neither d_input nor d_gates is written beyond a row's length.
  scalar_t* d_input;                    // (steps, batch, input features), or null
  GradientBlock<scalar_t> d_weight_ih;  // (gate_columns, input features), or null
  GradientBlock<scalar_t> d_weight_hh;  // (gate_columns, state_size), or null
  scalar_t* d_bias;                     // (gate_columns), or null
  scalar_t* d_bias_hh;                  // (gate_columns), or null: a second one, as in the forward
  scalar_t* d_h0;                       // (batch, state_size), or null where not wanted
  CellsOut<scalar_t> d_c0;
  scalar_t* d_gates;  // (steps, batch, saved_columns), or null
};

template <typename scalar_t>
void run(const SequenceBackward<scalar_t>& sequence);

}  // namespace lltm::cpu
