// Does on the CPU, one lane after the other, what the warps of a packed lookup
// do on a GPU: with the same arithmetic, and memory in place of shuffles.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/cuda/lookup_plan.h"

namespace picasso {
namespace {

void RunTile(const LookupTask& task, int64_t first_unit, int64_t* bad_ids) {
  LookupUnit units[kWarp];
  for (int lane = 0; lane < kWarp; ++lane) {
    units[lane] = FindUnit(task, first_unit + lane);
    *bad_ids += units[lane].bad_id;
  }
  for (int at = 0; at < kWarp * task.vectors; ++at) {
    const LookupVector place = FindVector(task, at);
    const LookupUnit& unit = units[place.unit];
    if (unit.to == nullptr) continue;
    char* to = unit.to + place.offset;
    // A GPU stops at a vector that is not aligned to its own size.
    if (reinterpret_cast<uintptr_t>(to) % task.vector_bytes != 0) std::abort();
    if (unit.from == nullptr) {
      std::memset(to, 0, task.vector_bytes);
      continue;
    }
    const char* from = unit.from + place.offset;
    if (reinterpret_cast<uintptr_t>(from) % task.vector_bytes != 0) {
      std::abort();
    }
    std::memcpy(to, from, task.vector_bytes);
  }
}

}  // namespace
}  // namespace picasso

extern "C" int64_t LookupMemberBytes() { return sizeof(picasso::LookupMember); }

// Adds to vectors[size] how many tiles move vectors of `size` bytes.
extern "C" void LookupOnHost(const picasso::LookupMember* members,
                             int64_t count, int64_t* bad_ids,
                             int64_t* vectors) {
  using picasso::LookupDescriptors;
  std::vector<int64_t> buffer(LookupDescriptors::Bytes(count) /
                              sizeof(int64_t));
  const LookupDescriptors descriptors(buffer.data(), count);
  const int64_t tiles = picasso::DescribeLookup(members, count, descriptors);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t k = picasso::FindTask(descriptors.first_tile, count, tile);
    const picasso::LookupTask& task = descriptors.tasks[k];
    ++vectors[task.vector_bytes];
    picasso::RunTile(task, (tile - descriptors.first_tile[k]) * picasso::kWarp,
                     bad_ids);
  }
}
