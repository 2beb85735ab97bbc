// Distinct values in the order in which they first come.
#ifndef PICASSO_TF_KERNELS_CORE_UNIQUE_H_
#define PICASSO_TF_KERNELS_CORE_UNIQUE_H_

#include <cstdint>
#include <vector>

namespace picasso {

// Appends the distinct ones of values[size] to `unique`, and writes to
// index[size] where there each value is.
template <typename T, typename Index>
void FindUnique(const T* values, int64_t size, std::vector<T>* unique,
                Index* index) {
  int64_t slots = 16;
  while (slots < 2 * size) slots *= 2;
  int shift = 64;
  for (int64_t s = slots; s > 1; s /= 2) --shift;
  std::vector<int32_t> table(slots, -1);  // positions in `unique`
  for (int64_t i = 0; i < size; ++i) {
    // Fibonacci hashing: neighbours are spread.
    uint64_t at =
        (static_cast<uint64_t>(values[i]) * 0x9E3779B97F4A7C15ull) >> shift;
    while (table[at] >= 0 && (*unique)[table[at]] != values[i]) {
      at = (at + 1) & (slots - 1);
    }
    if (table[at] < 0) {
      table[at] = unique->size();
      unique->push_back(values[i]);
    }
    index[i] = table[at];
  }
}

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_UNIQUE_H_
