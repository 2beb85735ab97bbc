#include "kernels/core/dot_interaction.h"

#include <atomic>
#include <cstring>
#include <type_traits>
#include <vector>

namespace picasso {
namespace dot_avx {
extern const DotKernels kKernels;
}
namespace dot_avx2 {
extern const DotKernels kKernels;
}
namespace dot_avx512 {
extern const DotKernels kKernels;
}

namespace {

// The widest first.
const DotKernels* const kAll[] = {&dot_avx512::kKernels, &dot_avx2::kKernels,
                                  &dot_avx::kKernels};

bool Runs(const DotKernels* kernels) {
  if (kernels == &dot_avx::kKernels) return true;
  const bool fma =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (kernels == &dot_avx2::kKernels) return fma;
  return fma && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512vl");
}

const DotKernels* Widest() {
  for (const DotKernels* kernels : kAll) {
    if (Runs(kernels)) return kernels;
  }
  return &dot_avx::kKernels;
}

std::atomic<const DotKernels*>& Chosen() {
  static std::atomic<const DotKernels*> chosen(Widest());
  return chosen;
}

const DotKernels& Best() { return *Chosen().load(std::memory_order_relaxed); }

constexpr int64_t kPad = 16;  // elements of the widest vector

int64_t Padded(int64_t size) { return (size + kPad - 1) / kPad * kPad; }

template <typename T, typename Job, typename Kernel>
void Run(const Job& job, int64_t batch, Kernel kernel,
         const ParallelFor& parallel_for) {
  const int64_t fields = job.layout.fields;
  if (batch == 0 || fields == 0) return;
  parallel_for(batch, fields * fields * (job.dim + 8) / 8 + 64,
               [&](int64_t begin, int64_t end) {
                 std::vector<T> scratch(DotScratchSize(fields, job.dim));
                 std::vector<const T*> rows(fields);
                 kernel(job, begin, end, scratch.data(), rows.data());
               });
}

}  // namespace

bool UseDotKernels(const char* name) {
  for (const DotKernels* kernels : kAll) {
    if (std::strcmp(kernels->name, name) == 0 && Runs(kernels)) {
      Chosen() = kernels;
      return true;
    }
  }
  return false;
}

int64_t DotScratchSize(int64_t fields, int64_t dim) {
  // Rows with padding twice, rows turned into columns, and a row of zeros.
  return 2 * Padded(dim) * fields + Padded(dim) * (Padded(fields) + 1);
}

template <typename T>
void DotInteraction(const DotForward<T>& job, int64_t batch,
                    const ParallelFor& parallel_for) {
  if constexpr (std::is_same_v<T, float>) {
    Run<T>(job, batch, Best().forward_float, parallel_for);
  } else {
    Run<T>(job, batch, Best().forward_double, parallel_for);
  }
}

template <typename T>
void DotInteractionGrad(const DotBackward<T>& job, int64_t batch,
                        const ParallelFor& parallel_for) {
  if constexpr (std::is_same_v<T, float>) {
    Run<T>(job, batch, Best().backward_float, parallel_for);
  } else {
    Run<T>(job, batch, Best().backward_double, parallel_for);
  }
}

#define INSTANTIATE(T)                                                \
  template void DotInteraction<T>(const DotForward<T>&, int64_t,      \
                                  const ParallelFor&);                \
  template void DotInteractionGrad<T>(const DotBackward<T>&, int64_t, \
                                      const ParallelFor&)
INSTANTIATE(float);
INSTANTIATE(double);
#undef INSTANTIATE

}  // namespace picasso
