// Which of PyTorch's settings for float32 on CUDA counts.
#pragma once

#include "../cell/cell_type.h"

namespace lltm {

/// Whether the products of a cell's float32 tensors may round their factors to TF32 on CUDA. The
/// LSTM and the GRU follow the setting that nn.LSTM and nn.GRU follow,
/// torch.backends.cudnn.rnn.fp32_precision (or torch.backends.cudnn.allow_tf32), and the LLTM that
/// of matrix products.
bool allows_tf32(CellType cell);

}  // namespace lltm
