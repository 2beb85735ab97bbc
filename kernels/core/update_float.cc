#include "kernels/core/update_impl.h"

namespace picasso {

template BadId PackedUpdate<float>(Rule, const RuleFlags&, UpdateMember<float>*,
                                   int64_t, bool, const ParallelFor&);

}  // namespace picasso
