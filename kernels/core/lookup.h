// Packed lookup: the rows of many tables, written straight to where their
// consumers read them.
#ifndef PICASSO_TF_KERNELS_CORE_LOOKUP_H_
#define PICASSO_TF_KERNELS_CORE_LOOKUP_H_

#include <cstdint>

#include "kernels/core/bags.h"
#include "kernels/core/common.h"
#include "kernels/core/partition.h"

namespace picasso {

struct LookupMember;

// Fills outer indices [begin, end) of `count` members that pool: of several,
// one bag of each, then the next of each. Returns a bad id, by its position in
// its plan; then nothing is read. See pool.h.
using PoolFunction = BadId (*)(const LookupMember* members, int64_t count,
                               int64_t begin, int64_t end);

// What becomes of a row on its way.
enum class RowCast : int32_t { kNone, kFloatToHalf, kFloatToBfloat16 };

// One member of a pack: rows of one table, one by one or pooled to bags, or a
// dense tensor that shares the concatenated output and is copied into its
// place.
//
// The member fills, for every outer index o in [0, outer), the `chunk_bytes`
// bytes at output + o * output_stride. A lookup fills them with the
// n = chunk_bytes / written bytes of a row (half of row_bytes behind a cast)
// rows named by the ids that follow each other at o * n; with a plan, with that
// many bags.
struct LookupMember {
  const char* table = nullptr;  // [rows, row_bytes]; may be null if empty
  int64_t rows = 0;
  int64_t row_bytes = 0;              // in the table
  const TableParts* parts = nullptr;  // instead of `table` and `rows`
  IdsView ids;
  PoolFunction pool = nullptr;    // null: rows one by one
  const BagPlan* plan = nullptr;  // instead of `ids`, with `pool`
  Combiner combiner = Combiner::kSum;
  const void* weights = nullptr;  // BagWeights; null: none
  bool zero_filled = false;       // bags filled with a default id become zero
  const char* dense = nullptr;    // [outer, chunk_bytes]; null for a lookup
  char* output = nullptr;
  int64_t output_stride = 0;  // bytes
  int64_t chunk_bytes = 0;
  int64_t outer = 0;
  RowCast cast = RowCast::kNone;  // the CUDA kernels do not cast so far

  int64_t written_bytes() const {  // of a row
    return cast == RowCast::kNone ? row_bytes : row_bytes / 2;
  }
};

// Fills the outputs of `count` members. Every id is checked against its own
// table; a bad one is never read, its row is left unwritten and the first bad
// id of the pack is returned, with its position in the ids or in the plan.
// Members may share tables and ids; outputs must
// not overlap.
BadId PackedLookup(const LookupMember* members, int64_t count,
                   const ParallelFor& parallel_for);

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_LOOKUP_H_
