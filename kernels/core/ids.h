// Small kernels that turn features into ids. Element types are parameters:
// strings are whatever string class the caller has.
#ifndef PICASSO_TF_KERNELS_CORE_IDS_H_
#define PICASSO_TF_KERNELS_CORE_IDS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace picasso {

// How many of data[size] differ from `ignore` (NaN differs from all).
template <typename T>
int64_t CountKept(const T* data, int64_t size, const T& ignore) {
  int64_t kept = 0;
  for (int64_t i = 0; i < size; ++i) kept += data[i] != ignore;
  return kept;
}

// Writes where the elements that differ from `ignore` lie, in row-major order,
// and what they are.
template <typename T>
void WriteKept(const T* data,                     // [prod(dims)]
               const std::vector<int64_t>& dims,  // all dimensions, rank >= 1
               const T& ignore,
               int64_t* indices,  // [kept, rank]
               T* values) {       // [kept]; null: not wanted
  const int rank = dims.size();
  int64_t size = 1;
  for (int64_t dim : dims) size *= dim;
  std::vector<int64_t> at(rank, 0);
  for (int64_t i = 0; i < size; ++i) {
    if (data[i] != ignore) {
      for (int d = 0; d < rank; ++d) *indices++ = at[d];
      if (values != nullptr) *values++ = data[i];
    }
    for (int d = rank - 1; d >= 0 && ++at[d] == dims[d]; --d) at[d] = 0;
  }
}

// The number of the interval that `value` lies in: boundaries are ascending,
// and a value on a boundary belongs to what is above it.
template <typename T>
int32_t Bucket(const T& value, const float* begin, const float* end) {
  return std::upper_bound(begin, end, value) - begin;
}

// `value`, or `otherwise` if it is not in [low, high).
template <typename T>
T InRangeOr(T value, T low, T high, T otherwise) {
  return value < low || value >= high ? otherwise : value;
}

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_IDS_H_
