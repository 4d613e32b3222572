// Copies that complete on a barrier: between blocks of a cluster, and of boxes of tensors (TMA).
// sm_90 and newer.
#pragma once

#include "barrier.cuh"
#include "cluster.cuh"

#include <cuda.h>
#include <cuda/ptx>

#include <cstdint>

namespace lltm::cuda {

// Makes this thread's writes to shared memory visible to copies that are issued after a block
// barrier.
LLTM_DEVICE void fence_for_copies() {
#if __CUDA_ARCH__ >= 900
  ptx::fence_proxy_async(ptx::space_shared);
#endif
}

// Starts copying `bytes` bytes from this block's shared memory to address `to` of block `rank` of
// the cluster. The copy completes on that block's barrier `barrier`. All addresses are given as
// this block's own.
LLTM_DEVICE void copy_to_rank(uint32_t to, uint32_t from, int bytes, uint32_t barrier, int rank) {
#if __CUDA_ARCH__ >= 900
  ptx::cp_async_bulk(ptx::space_cluster,
                     ptx::space_shared,
                     at_shared(address_in_block(to, rank)),
                     at_shared(from),
                     static_cast<uint32_t>(bytes),
                     barrier_at(address_in_block(barrier, rank)));
#endif
}

// Sends 16 bytes to a block of the cluster and signals its barrier. `to` and `barrier` are
// addresses in that block (address_in_block).
LLTM_DEVICE void send_16(uint32_t to, float4 four, uint32_t barrier) {
  ptx::st_async(at_shared<float>(to), {four.x, four.y, four.z, four.w}, barrier_at(barrier));
}

LLTM_DEVICE void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}

// Copies a box of a tensor to shared memory, with zeros for whatever lies outside the tensor.
// `blocks`, a mask, copies it to the same place in several blocks of the cluster and signals the
// same barrier in each.
template <typename... Blocks>
LLTM_DEVICE void copy_box_2d(
    uint32_t to, const CUtensorMap* map, int x, int y, uint32_t barrier, Blocks... blocks) {
  ptx::cp_async_bulk_tensor(ptx::space_cluster,
                            ptx::space_global,
                            at_shared(to),
                            map,
                            {x, y},
                            barrier_at(barrier),
                            blocks...);
}
template <typename... Blocks>
LLTM_DEVICE void copy_box_3d(
    uint32_t to, const CUtensorMap* map, int x, int y, int z, uint32_t barrier, Blocks... blocks) {
  ptx::cp_async_bulk_tensor(ptx::space_cluster,
                            ptx::space_global,
                            at_shared(to),
                            map,
                            {x, y, z},
                            barrier_at(barrier),
                            blocks...);
}

// Copies a box from shared memory to a tensor, except for what lies outside the tensor.
LLTM_DEVICE void write_box_2d(uint32_t from, const CUtensorMap* map, int x, int y) {
  ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, map, {x, y}, at_shared(from));
}
LLTM_DEVICE void commit_writes() {
  ptx::cp_async_bulk_commit_group();
}
// wait_writes_read waits until the boxes that this thread wrote have been read from shared memory,
// except for those of the last kPending commits. wait_writes waits until all writes are complete.
template <int kPending = 0>
LLTM_DEVICE void wait_writes_read() {
  ptx::cp_async_bulk_wait_group_read(ptx::n32_t<kPending>());
}
LLTM_DEVICE void wait_writes() {
  ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
}

}  // namespace lltm::cuda
