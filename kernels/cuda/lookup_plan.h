// How the bytes of a packed lookup are shared out among the warps of a GPU.
// Plain arithmetic for host and device: it is tested without a GPU.
//
// Rows move in *vectors*: 16 bytes, or as many as sizes and addresses allow.
// A *unit* is a row, or a piece of a long row of at most 32 vectors. A warp
// takes a *tile* of 32 units: first each lane finds where one unit is, which
// costs divisions and the read of an id; then all lanes together move the
// vectors of the tile, neighbours next to each other, each learning from the
// unit's own lane where it is. So no lane idles, whatever the size of a row.
#ifndef PICASSO_TF_KERNELS_CUDA_LOOKUP_PLAN_H_
#define PICASSO_TF_KERNELS_CUDA_LOOKUP_PLAN_H_

#include <cstdint>

#include "kernels/core/common.h"
#include "kernels/core/lookup.h"

namespace picasso {

constexpr int kWarp = 32;
constexpr int kMaxVectorBytes = 16;

// One member, cut into units.
struct LookupTask {
  LookupMember member;
  int64_t row_bytes = 0;     // of what is copied in one go, also when dense
  int64_t row_vectors = 0;   // vectors of a row
  int64_t rows_inside = 0;   // rows that follow each other in the output
  int64_t pieces = 0;        // units of a row
  int64_t units = 0;         // of the member
  int32_t vector_bytes = 0;  // 1, 2, 4, 8 or 16
  int32_t vectors = 0;       // of a unit, 1 to 32
  uint32_t reciprocal = 0;   // 2^16 / vectors, rounded up
};

// The descriptors of a pack, as they lie in a buffer.
struct LookupDescriptors {
  PICASSO_HOST_DEVICE LookupDescriptors(void* buffer, int64_t count)
      : tasks(static_cast<LookupTask*>(buffer)),
        first_tile(reinterpret_cast<int64_t*>(tasks + count)) {}

  static int64_t Bytes(int64_t count) {
    return count * (sizeof(LookupTask) + sizeof(int64_t));
  }

  LookupTask* tasks;
  int64_t* first_tile;  // of each task; apart, for the search is dense there
};

// Where the bytes of one unit come from and go to.
struct LookupUnit {
  const char* from = nullptr;  // null: zeros are written
  char* to = nullptr;          // null: no such unit
  bool bad_id = false;         // true for one unit of each row with a bad id
};

// A vector of a tile.
struct LookupVector {
  int unit = 0;    // the lane that found its unit
  int offset = 0;  // bytes, in the unit
};

// Cuts one member.
inline LookupTask CutMember(const LookupMember& m) {
  LookupTask task;
  task.member = m;
  // A table may be empty and have no address, so `dense` tells.
  task.row_bytes = m.dense != nullptr ? m.chunk_bytes : m.row_bytes;
  if (m.outer == 0 || m.chunk_bytes == 0) return task;
  const char* source = m.dense != nullptr ? m.dense : m.table;
  // The lowest set bit of them all.
  uint64_t bits = kMaxVectorBytes | reinterpret_cast<uintptr_t>(source) |
                  reinterpret_cast<uintptr_t>(m.output) | task.row_bytes;
  if (m.outer > 1) bits |= m.output_stride;
  task.vector_bytes = bits & -bits;
  task.row_vectors = task.row_bytes / task.vector_bytes;
  task.rows_inside = m.chunk_bytes / task.row_bytes;
  task.pieces = (task.row_vectors + kWarp - 1) / kWarp;
  task.vectors = (task.row_vectors + task.pieces - 1) / task.pieces;
  task.reciprocal = ((1u << 16) + task.vectors - 1) / task.vectors;
  task.units = m.outer * task.rows_inside * task.pieces;
  return task;
}

// Writes the descriptors of a pack and returns its number of tiles.
inline int64_t DescribeLookup(const LookupMember* members, int64_t count,
                              const LookupDescriptors& descriptors) {
  int64_t tiles = 0;
  for (int64_t k = 0; k < count; ++k) {
    descriptors.tasks[k] = CutMember(members[k]);
    descriptors.first_tile[k] = tiles;
    tiles += (descriptors.tasks[k].units + kWarp - 1) / kWarp;
  }
  return tiles;
}

// The task that holds a tile: the last whose first tile is not behind it. Tasks
// without tiles share a first tile with their successor.
PICASSO_HOST_DEVICE inline int64_t FindTask(const int64_t* first_tile,
                                            int64_t count, int64_t tile) {
  int64_t low = 0;
  int64_t high = count;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (first_tile[middle] <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Reads and checks the id of a unit. The only read here is that of the id.
PICASSO_HOST_DEVICE inline LookupUnit FindUnit(const LookupTask& task,
                                               int64_t unit) {
  LookupUnit found;
  if (unit >= task.units) return found;
  const LookupMember& m = task.member;
  int64_t row = unit;
  int64_t offset = 0;
  bool first_piece = true;
  if (task.pieces > 1) {
    row = unit / task.pieces;
    int64_t vector = (unit - row * task.pieces) * task.vectors;
    first_piece = vector == 0;
    // The last piece is as long as the others: it begins early enough, and
    // writes some bytes of the piece before it once more.
    const int64_t last = task.row_vectors - task.vectors;
    if (vector > last) vector = last;
    offset = vector * task.vector_bytes;
  }
  int64_t outer = row;
  int64_t inside = 0;
  if (task.rows_inside > 1) {
    outer = row / task.rows_inside;
    inside = row - outer * task.rows_inside;
  }
  found.to =
      m.output + outer * m.output_stride + inside * task.row_bytes + offset;
  if (m.dense != nullptr) {
    found.from = m.dense + row * task.row_bytes + offset;
    return found;
  }
  const int64_t id = m.ids.is_int64 ? IdsReader<int64_t>(m.ids)[row]
                                    : IdsReader<int32_t>(m.ids)[row];
  if (InRange(id, m.rows)) {
    found.from = m.table + id * task.row_bytes + offset;
  } else {
    found.bad_id = first_piece;
  }
  return found;
}

// Which vector the lanes of a warp move: number `at` of the tile, which is
// below 32 * task.vectors.
PICASSO_HOST_DEVICE inline LookupVector FindVector(const LookupTask& task,
                                                   int at) {
  LookupVector found;
  // at / vectors: exact, for at * (vectors - 1) < 2^16.
  found.unit = (at * task.reciprocal) >> 16;
  found.offset = (at - found.unit * task.vectors) * task.vector_bytes;
  return found;
}

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CUDA_LOOKUP_PLAN_H_
