#include "kernels/core/rows.h"

namespace picasso {
namespace rows_avx {

constexpr int64_t kVectorBytes = 32;
#include "kernels/core/rows_impl.h"

extern const RowKernels kKernels = {"avx", Copy, Add};

}  // namespace rows_avx
}  // namespace picasso
