#include "kernels/core/rows.h"

#include <atomic>
#include <cstring>

namespace picasso {
namespace rows_avx {
extern const RowKernels kKernels;
}
namespace rows_avx512 {
extern const RowKernels kKernels;
}

namespace {

bool Runs(const RowKernels& kernels) {
  return &kernels == &rows_avx::kKernels ||
         (__builtin_cpu_supports("avx512f") &&
          __builtin_cpu_supports("avx512vl"));
}

// The widest first. AVX2 has nothing for floats that AVX has not.
const RowKernels* const kAll[] = {&rows_avx512::kKernels, &rows_avx::kKernels};

const RowKernels* Widest() {
  for (const RowKernels* kernels : kAll) {
    if (Runs(*kernels)) return kernels;
  }
  return &rows_avx::kKernels;
}

std::atomic<const RowKernels*>& Chosen() {
  static std::atomic<const RowKernels*> chosen(Widest());
  return chosen;
}

}  // namespace

const RowKernels& BestRowKernels() {
  return *Chosen().load(std::memory_order_relaxed);
}

bool UseRowKernels(const char* name) {
  for (const RowKernels* kernels : kAll) {
    if (std::strcmp(kernels->name, name) == 0 && Runs(*kernels)) {
      Chosen() = kernels;
      return true;
    }
  }
  return false;
}

}  // namespace picasso
