#include "kernels/cuda/lookup.h"

#include <cuda_runtime.h>

#include "kernels/cuda/lookup_plan.h"

namespace picasso {
namespace {

constexpr int kBlock = 256;
constexpr int kWarpsOfBlock = kBlock / kWarp;
constexpr unsigned kAllLanes = 0xffffffff;

// Vectors that each lane reads before it writes the first: memory is several
// hundred cycles away.
constexpr int kInFlight = 4;

template <typename T>
__device__ T* FromLane(T* pointer, int lane) {
  return reinterpret_cast<T*>(__shfl_sync(
      kAllLanes, reinterpret_cast<unsigned long long>(pointer), lane));
}

// Moves the first `end` vectors of a tile. `mine` is the unit that this lane
// has found.
template <typename Vector>
__device__ void MoveTile(const LookupTask& task, const LookupUnit& mine,
                         int lane, int end) {
  for (int step = 0; step < end; step += kInFlight * kWarp) {
    Vector values[kInFlight];
    char* to[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      values[i] = Vector();
      to[i] = nullptr;
      const int first = step + i * kWarp;
      if (first >= end) continue;  // the whole warp
      const LookupVector place = FindVector(task, first + lane);
      const char* from = FromLane(mine.from, place.unit);
      to[i] = FromLane(mine.to, place.unit);
      if (to[i] != nullptr) to[i] += place.offset;
      if (from != nullptr) {
        values[i] = __ldg(reinterpret_cast<const Vector*>(from + place.offset));
      }
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (to[i] != nullptr) *reinterpret_cast<Vector*>(to[i]) = values[i];
    }
  }
}

__global__ void __launch_bounds__(kBlock)
    PackedLookupKernel(LookupDescriptors descriptors, int64_t count,
                       int64_t tiles, unsigned long long* bad_ids) {
  const int lane = threadIdx.x % kWarp;
  const int64_t tile =
      int64_t{blockIdx.x} * kWarpsOfBlock + threadIdx.x / kWarp;
  if (tile >= tiles) return;  // the whole warp
  const int64_t k = FindTask(descriptors.first_tile, count, tile);
  // A copy, in registers: through a reference, each write to an output would
  // have the compiler read the task again.
  const LookupTask task = descriptors.tasks[k];
  const int64_t first_unit = (tile - descriptors.first_tile[k]) * kWarp;
  const LookupUnit mine = FindUnit(task, first_unit + lane);
  const unsigned bad = __ballot_sync(kAllLanes, mine.bad_id);
  if (bad != 0 && lane == 0) {
    atomicAdd(bad_ids, static_cast<unsigned long long>(__popc(bad)));
  }
  const int64_t units = task.units - first_unit;
  const int end = (units < kWarp ? units : kWarp) * task.vectors;
  switch (task.vector_bytes) {
    case 16:
      return MoveTile<uint4>(task, mine, lane, end);
    case 8:
      return MoveTile<uint2>(task, mine, lane, end);
    case 4:
      return MoveTile<unsigned int>(task, mine, lane, end);
    case 2:
      return MoveTile<unsigned short>(task, mine, lane, end);
    default:
      return MoveTile<unsigned char>(task, mine, lane, end);
  }
}

const char* TextOf(cudaError_t error) {
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

int64_t LookupDescriptorBytes(int64_t count) {
  return LookupDescriptors::Bytes(count);
}

const char* LaunchPackedLookup(const LookupMember* members, int64_t count,
                               void* host_descriptors, void* device_descriptors,
                               unsigned long long* bad_ids,
                               CUstream_st* stream) {
  const int64_t tiles = DescribeLookup(
      members, count, LookupDescriptors(host_descriptors, count));
  if (tiles == 0) return nullptr;
  const cudaError_t error = cudaMemcpyAsync(
      device_descriptors, host_descriptors, LookupDescriptorBytes(count),
      cudaMemcpyHostToDevice, stream);
  if (error != cudaSuccess) return TextOf(error);
  const int64_t blocks = (tiles + kWarpsOfBlock - 1) / kWarpsOfBlock;
  PackedLookupKernel<<<blocks, kBlock, 0, stream>>>(
      LookupDescriptors(device_descriptors, count), count, tiles, bad_ids);
  return TextOf(cudaGetLastError());
}

}  // namespace picasso

extern "C" {

// For tests on a GPU, which need no TensorFlow for this.
__attribute__((visibility("default"))) int64_t
PicassoCudaLookupDescriptorBytes(int64_t count) {
  return picasso::LookupDescriptorBytes(count);
}

__attribute__((visibility("default"))) const char* PicassoCudaPackedLookup(
    const picasso::LookupMember* members, int64_t count, void* host_descriptors,
    void* device_descriptors, unsigned long long* bad_ids,
    CUstream_st* stream) {
  return picasso::LaunchPackedLookup(members, count, host_descriptors,
                                     device_descriptors, bad_ids, stream);
}

}  // extern "C"
