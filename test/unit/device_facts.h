// For tests of the choice of CUDA kernels without a GPU: the arithmetics, random sizes, and facts
// of several devices.
#pragma once

#include "cuda/plan/forward.h"

#include <cmath>
#include <cstdint>
#include <random>

namespace lltm::test {

inline constexpr cuda::Arithmetic kArithmetics[] = {cuda::Arithmetic::kFloat32,
                                                    cuda::Arithmetic::kTf32,
                                                    cuda::Arithmetic::kFloat16,
                                                    cuda::Arithmetic::kBFloat16};

inline int64_t log_uniform(std::mt19937_64& random, double least, double most) {
  return static_cast<int64_t>(
      std::exp(std::uniform_real_distribution(std::log(least), std::log(most))(random)));
}

inline constexpr cuda::DeviceFacts kH200{
    .multiprocessors = 132,
    .shared_bytes_a_block = 227 * 1024,
    .tiles = true,
    .wgmma = true,
    .resident = {132, 132, 126, 120, 100, 126, 98, 120, 0, 0, 0, 84, 0, 0, 0, 112},
    .resident_by_two = {264, 264, 252, 248, 235, 252, 224, 240}};

/// An eighth of an H200, where large clusters do not fit.
inline constexpr cuda::DeviceFacts kEighthOfAnH200{
    .multiprocessors = 16,
    .shared_bytes_a_block = 227 * 1024,
    .tiles = true,
    .wgmma = true,
    .resident = {16, 16, 15, 16, 10, 12, 7, 0},
    .resident_by_two = {32, 32, 30, 32, 30, 30, 28, 0}};

/// A slice whose GPCs have five multiprocessors at most.
inline constexpr cuda::DeviceFacts kSliceOfSmallClusters{
    .multiprocessors = 16,
    .shared_bytes_a_block = 227 * 1024,
    .tiles = true,
    .wgmma = true,
    .resident = {16, 16, 15, 12, 10, 0, 0, 0},
    .resident_by_two = {32, 32, 30, 24, 20, 0, 0, 0}};

/// sm_80, with neither clusters nor Hopper's instructions.
inline constexpr cuda::DeviceFacts kA100{.multiprocessors = 108,
                                         .shared_bytes_a_block = 163 * 1024,
                                         .tiles = true,
                                         .resident = {108},
                                         .resident_by_two = {216}};

}  // namespace lltm::test
