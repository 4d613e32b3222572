// The five gradients of the cell, in the order of lltm::backward's results and of its output_mask.
#pragma once

namespace lltm {

enum Gradient { kInput, kWeights, kBias, kOldH, kOldCell, kGradientCount };

}  // namespace lltm
