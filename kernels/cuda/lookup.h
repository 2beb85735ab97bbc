// Packed lookup on a GPU: one launch for all tables of a pack. Needs no CUDA
// header, so that callers can be compiled without the toolkit.
#ifndef PICASSO_TF_KERNELS_CUDA_LOOKUP_H_
#define PICASSO_TF_KERNELS_CUDA_LOOKUP_H_

#include <cstdint>

#include "kernels/core/lookup.h"

struct CUstream_st;  // what a cudaStream_t points to

namespace picasso {

// Bytes of each of the two descriptor buffers of a pack with `count` members.
int64_t LookupDescriptorBytes(int64_t count);

// Fills the outputs of `count` members, as PackedLookup does on the CPU, in
// the order of `stream` and without waiting for it. `members` is read before
// the call returns; the pointers in it are the device's. Two buffers, aligned
// to 8 bytes, carry the descriptors over:
// host_descriptors: page-locked memory, which must be left alone until the
//   stream has passed this call (with pageable memory the copy may block).
// device_descriptors: device memory, valid for the work on the stream.
//
// A bad id is never read; its row is filled with zeros, as stock's kernels do
// on a GPU, and the number of bad ids is added to *bad_ids, a counter in device
// memory.
//
// Returns null, or what went wrong: then nothing was launched.
const char* LaunchPackedLookup(const LookupMember* members, int64_t count,
                               void* host_descriptors, void* device_descriptors,
                               unsigned long long* bad_ids,
                               CUstream_st* stream);

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CUDA_LOOKUP_H_
