// The forward pass of a sequence with the kernels of kernels/kernels.h: what is computed when.
#pragma once

#include "../kernels/kernels.h"
#include "../schedule.h"
#include "arrays.h"

#include <cstdint>

namespace lltm::cpu {

/// Plain pointers are to contiguous arrays.
template <typename scalar_t>
struct SequenceForward {
  Steps steps;
  SequenceInput<scalar_t> input;
  int64_t state_size;
  Weights<scalar_t> weights;
  const scalar_t* bias;  // (3*state_size), or null
  const scalar_t* h0;    // (batch, state_size), or null for zeros
  const scalar_t* c0;    // (batch, state_size), or null for zeros or exact_c0
  scalar_t* output;      // (steps, batch, state_size)
  scalar_t* h_n;         // (batch, state_size)
  scalar_t* c_n;         // (batch, state_size), or null for exact_c_n
  scalar_t* cells;       // (steps, batch, state_size), or null where not wanted
  scalar_t* gates;       // (steps, batch, 3*state_size), or null where not wanted
  // Instead of c0 and c_n if c0 is float beside 16 bits, else null.
  const accumulate_t<scalar_t>* exact_c0;
  accumulate_t<scalar_t>* exact_c_n;
};

template <typename scalar_t>
void run(const SequenceForward<scalar_t>& sequence);

}  // namespace lltm::cpu
