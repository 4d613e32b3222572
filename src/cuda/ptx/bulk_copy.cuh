// Copies that complete on a barrier: between blocks of a cluster, and of boxes of tensors (TMA,
// sm_90 on).
#pragma once

#include <cuda.h>

#include <cstdint>

namespace lltm::cuda {

// Makes this thread's writes to shared memory visible to the copies that follow a block barrier.
__device__ __forceinline__ void fence_for_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
#endif
}

// Starts the copy of `bytes` from this block's shared memory to address `to` and barrier `barrier`
// of the cluster's block `rank`; the addresses are as this block would write its own.
__device__ __forceinline__ void copy_to_rank(
    uint32_t to, uint32_t from, int bytes, uint32_t barrier, int rank) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .b32 remote_to, remote_barrier;\n"
      "mapa.shared::cluster.u32 remote_to, %0, %4;\n"
      "mapa.shared::cluster.u32 remote_barrier, %3, %4;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
      " [remote_to], [%1], %2, [remote_barrier];\n"
      "}\n" ::"r"(to),
      "r"(from),
      "r"(bytes),
      "r"(barrier),
      "r"(rank)
      : "memory");
#endif
}

// Sends 16 bytes to a block of the cluster, and tells its barrier.
__device__ __forceinline__ void send_16(
    uint32_t to, float x, float y, float z, float w, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];\n" ::"r"(to),
      "f"(x),
      "f"(y),
      "f"(z),
      "f"(w),
      "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}
// Copies a box of a tensor to shared memory; what lies outside the tensor is zero.
__device__ __forceinline__ void copy_box_2d(
    uint32_t to, const CUtensorMap* map, int x, int y, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];\n" ::"r"(to),
      "l"(map),
      "r"(x),
      "r"(y),
      "r"(barrier)
      : "memory");
}
// Copies a box from shared memory; what lies outside the tensor is left out.
__device__ __forceinline__ void write_box_2d(uint32_t from, const CUtensorMap* map, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];\n" ::"l"(map),
      "r"(from),
      "r"(x),
      "r"(y)
      : "memory");
}
__device__ __forceinline__ void commit_writes() {
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}
// Until the boxes that this thread wrote have been read, but for those of the last kPending
// commits; or until all have arrived.
template <int kPending = 0>
__device__ __forceinline__ void wait_writes_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void wait_writes() {
  asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
}
__device__ __forceinline__ void copy_box_3d(
    uint32_t to, const CUtensorMap* map, int x, int y, int z, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4}], [%5];\n" ::"r"(to),
      "l"(map),
      "r"(x),
      "r"(y),
      "r"(z),
      "r"(barrier)
      : "memory");
}

// The same to every block of the cluster whose bit is set in `blocks`, to the same place and
// barrier of each.
__device__ __forceinline__ void copy_box_2d(
    uint32_t to, const CUtensorMap* map, int x, int y, uint32_t barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;\n" ::"r"(to),
      "l"(map),
      "r"(x),
      "r"(y),
      "r"(barrier),
      "h"(blocks)
      : "memory");
}
__device__ __forceinline__ void copy_box_3d(
    uint32_t to, const CUtensorMap* map, int x, int y, int z, uint32_t barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;\n" ::"r"(to),
      "l"(map),
      "r"(x),
      "r"(y),
      "r"(z),
      "r"(barrier),
      "h"(blocks)
      : "memory");
}

}  // namespace lltm::cuda
