// Loops over rows that wider vectors make faster: they move bytes, add and
// multiply, element by element, so that every instruction set gives the same
// bits.
#ifndef PICASSO_TF_KERNELS_CORE_ROWS_H_
#define PICASSO_TF_KERNELS_CORE_ROWS_H_

#include <cstdint>

namespace picasso {

// Rows of `count` tables, which go side by side into one output: for each o in
// [begin, end), row ids[k][o] of tables[k] to
// output + o * output_stride + k * row_bytes.
struct RowCopies {
  const char* const* tables;
  const int64_t* const* ids;
  const int64_t* rows;  // of the tables, above 0
  int64_t count;
  int64_t row_bytes;  // a power of two, from 4 to 512
  int64_t begin;
  int64_t end;
  int64_t ahead;  // rows of each table asked for ahead of the copy
  char* output;
  int64_t output_stride;
};

inline bool CanCopyRows(int64_t row_bytes) {
  return row_bytes >= 4 && row_bytes <= 512 &&
         (row_bytes & (row_bytes - 1)) == 0;
}

// sums[numbers[i]] += row(i), or row(i) * factors[i], in turn.
struct RowAdditions {
  const float* const* each;  // row i is each[i]; if null, ...
  const float* first;        // ... first + i * stride
  int64_t stride;
  const float* factors;  // null: none
  const int32_t* numbers;
  int64_t size;
  int64_t dim;
  float* sums;

  const float* row(int64_t i) const {
    return each != nullptr ? each[i] : first + i * stride;
  }
};

struct RowKernels {
  const char* name;
  // False: there is an id outside of its table, whose row was left out.
  bool (*copy)(const RowCopies& copies);
  void (*add)(const RowAdditions& additions);
};

// The widest that this CPU has.
const RowKernels& BestRowKernels();

// For tests: has BestRowKernels return those of this name; false: there are
// none, or not for this CPU. Not while kernels run.
bool UseRowKernels(const char* name);

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_ROWS_H_
