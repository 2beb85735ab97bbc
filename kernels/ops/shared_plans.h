// Plans of bags that a step needs twice: lookups make them, and the updates of
// the same tables find them.
#ifndef PICASSO_TF_KERNELS_OPS_SHARED_PLANS_H_
#define PICASSO_TF_KERNELS_OPS_SHARED_PLANS_H_

#include <memory>
#include <string>
#include <vector>

#include "kernels/core/bags.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace picasso {

// The plans that one kernel made in one step, by what they were made of.
class MadePlans {
 public:
  // `inputs`: the tensors that the sources point into. They are kept, so that
  // no other tensor comes to lie where one of them was, nor is written there.
  explicit MadePlans(std::vector<tensorflow::Tensor> inputs)
      : inputs_(std::move(inputs)) {}

  void Add(const SparseIds& source, std::shared_ptr<const BagPlan> plan) {
    plans_.push_back({source, std::move(plan)});
  }
  void Sort();
  // Null: no plan was made of this.
  std::shared_ptr<const BagPlan> Find(const SparseIds& source) const;

 private:
  struct Made {
    SparseIds source;
    std::shared_ptr<const BagPlan> plan;
  };
  std::vector<tensorflow::Tensor> inputs_;
  std::vector<Made> plans_;  // ascending by where their ids lie
};

using MadePlansPtr = std::shared_ptr<const MadePlans>;

// From now on, kernels of this process share their plans: there is one that
// looks for them.
void WantPlans();
bool PlansAreWanted();

// Keeps the plans until the step ends, or the kernel of this name makes others
// (in a loop). Without a step's container, nothing is kept.
void SharePlans(tensorflow::OpKernelContext* ctx, const std::string& kernel,
                MadePlansPtr plans);

// What kernels of this step have shared so far.
std::vector<MadePlansPtr> PlansOfStep(tensorflow::OpKernelContext* ctx);

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_OPS_SHARED_PLANS_H_
