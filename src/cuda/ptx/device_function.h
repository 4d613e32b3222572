// What functions of device code are declared with. Headers that host code includes use it, too.
#pragma once

#include <cuda_runtime_api.h>

#define LLTM_DEVICE __device__ __forceinline__
