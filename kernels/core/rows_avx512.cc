#include "kernels/core/rows.h"

// For the functions that follow; which runs is decided in rows.cc. (The
// compiler's flag -ffp-contract=off keeps products and sums apart.)
#pragma GCC target("avx512f,avx512vl")

namespace picasso {
namespace rows_avx512 {

constexpr int64_t kVectorBytes = 64;
#include "kernels/core/rows_impl.h"

extern const RowKernels kKernels = {"avx512", Copy, Add};

}  // namespace rows_avx512
}  // namespace picasso
