#include "kernels/core/update_impl.h"

namespace picasso {

template BadId PackedUpdate<double>(Rule, const RuleFlags&,
                                    UpdateMember<double>*, int64_t, bool,
                                    const ParallelFor&);

}  // namespace picasso
