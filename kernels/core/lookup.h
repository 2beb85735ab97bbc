// Packed lookup: the rows of many tables, written straight to where their
// consumers read them.
#ifndef PICASSO_TF_KERNELS_CORE_LOOKUP_H_
#define PICASSO_TF_KERNELS_CORE_LOOKUP_H_

#include <cstdint>

#include "kernels/core/common.h"

namespace picasso {

// What becomes of a row on its way.
enum class RowCast : int32_t { kNone, kFloatToHalf, kFloatToBfloat16 };

// One member of a pack: rows of one table, or a dense tensor that shares the
// concatenated output and is copied into its place.
//
// The member fills, for every outer index o in [0, outer), the `chunk_bytes`
// bytes at output + o * output_stride. A lookup fills them with the
// n = chunk_bytes / written bytes of a row (half of row_bytes behind a cast)
// rows named by the ids that follow each other at o * n.
struct LookupMember {
  const char* table = nullptr;  // [rows, row_bytes]; may be null if empty
  int64_t rows = 0;
  int64_t row_bytes = 0;  // in the table
  IdsView ids;
  const char* dense = nullptr;  // [outer, chunk_bytes]; null for a lookup
  char* output = nullptr;
  int64_t output_stride = 0;  // bytes
  int64_t chunk_bytes = 0;
  int64_t outer = 0;
  int64_t first_unit = 0;  // sum of `outer` of the members before this one
  RowCast cast = RowCast::kNone;  // the CUDA kernels do not cast so far

  int64_t written_bytes() const {  // of a row
    return cast == RowCast::kNone ? row_bytes : row_bytes / 2;
  }
};

// Fills the outputs of `count` members. Every id is checked against its own
// table; a bad one is never read, its row is left unwritten and the first bad
// id of the pack is returned. Members may share tables and ids; outputs must
// not overlap.
BadId PackedLookup(const LookupMember* members, int64_t count,
                   const ParallelFor& parallel_for);

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_LOOKUP_H_
