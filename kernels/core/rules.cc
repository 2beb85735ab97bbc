#include "kernels/core/update.h"

namespace picasso {

// In the order of Rule.
const RuleInfo kRules[] = {
    {"scatter_add", 0, 0, false, false},
    {"scatter_sub", 0, 0, false, false},
    {"adagrad", 1, 1, false, false},
    {"adagrad_v2", 1, 2, false, false},
    {"momentum", 1, 2, false, false},
    {"keras_momentum", 1, 2, false, false},
    {"ftrl", 2, 4, false, false},
    {"ftrl_v2", 2, 5, false, false},
    {"rms_prop", 2, 4, false, false},
    {"adadelta", 2, 3, false, false},
    {"proximal_adagrad", 1, 3, false, true},
    {"adagrad_da", 2, 3, true, true},
};
const int kRuleCount = sizeof(kRules) / sizeof(kRules[0]);

}  // namespace picasso
