// The forward pass of a sequence with the kernels of kernels/kernels.h: what is computed when.
#pragma once

#include "../../cell/descriptor.h"
#include "../kernels/kernels.h"
#include "../schedule.h"
#include "arrays.h"

#include <cstdint>

namespace lltm::cpu {

/// Plain pointers are to contiguous arrays.
template <typename scalar_t>
struct SequenceForward {
  const CellDescriptor& cell;
  Steps steps;
  SequenceInput<scalar_t> input;
  int64_t state_size;
  int64_t gate_columns;   // the number of gates times state_size
  int64_t saved_columns;  // the same of the numbers that the cell saves
  WeightColumns<scalar_t> weight_ih;
  WeightColumns<scalar_t> weight_hh;
  const scalar_t* bias;     // (gate_columns), or null
  const scalar_t* bias_hh;  // (gate_columns), or null: a second one, if the cell has two
  const scalar_t* h0;       // (batch, state_size), or null for zeros
  CellsIn<scalar_t> c0;
  scalar_t* output;  // (steps, batch, state_size)
  scalar_t* h_n;     // (batch, state_size), or null where not wanted
  CellsOut<scalar_t> c_n;
  scalar_t* cells;  // (steps, batch, state_size), or null where not wanted
  scalar_t* gates;  // (steps, batch, saved_columns), or null where not wanted
};

template <typename scalar_t>
void run(const SequenceForward<scalar_t>& sequence);

}  // namespace lltm::cpu
