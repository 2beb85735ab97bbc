#include "kernels/core/update_impl.h"

namespace picasso {

template BadId PackedUpdate<Eigen::half>(Rule, const RuleFlags&,
                                         UpdateMember<Eigen::half>*, int64_t,
                                         bool, const ParallelFor&);
template BadId PackedUpdate<Eigen::bfloat16>(Rule, const RuleFlags&,
                                             UpdateMember<Eigen::bfloat16>*,
                                             int64_t, bool, const ParallelFor&);

}  // namespace picasso
