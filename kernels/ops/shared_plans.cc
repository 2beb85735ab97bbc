#include "kernels/ops/shared_plans.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>

#include "tensorflow/core/framework/resource_mgr.h"

namespace picasso {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::ResourceBase;
using tensorflow::Status;
using tensorflow::core::ScopedUnref;

constexpr char kName[] = "picasso_plans";

std::atomic<bool> wanted{false};
std::atomic<int64_t> found{0};

// Of one step; in its container.
class StepPlans : public ResourceBase {
 public:
  std::string DebugString() const override { return kName; }

  void Put(const std::string& kernel, MadePlansPtr plans) {
    tensorflow::mutex_lock lock(mutex_);
    plans_[kernel] = std::move(plans);
  }
  std::vector<MadePlansPtr> All() {
    tensorflow::mutex_lock lock(mutex_);
    std::vector<MadePlansPtr> all;
    for (const auto& [kernel, plans] : plans_) all.push_back(plans);
    return all;
  }

 private:
  tensorflow::mutex mutex_;
  std::map<std::string, MadePlansPtr> plans_;
};

bool Before(const SparseIds& a, const SparseIds& b) {
  return std::less<const void*>()(a.ids.data, b.ids.data);
}

}  // namespace

void MadePlans::Sort() {
  std::sort(plans_.begin(), plans_.end(), [](const Made& a, const Made& b) {
    return Before(a.source, b.source);
  });
}

std::shared_ptr<const BagPlan> MadePlans::Find(const SparseIds& source) const {
  auto made = std::lower_bound(
      plans_.begin(), plans_.end(), source,
      [](const Made& m, const SparseIds& s) { return Before(m.source, s); });
  for (; made != plans_.end() && !Before(source, made->source); ++made) {
    if (made->source == source) {
      ++found;
      return made->plan;
    }
  }
  return nullptr;
}

void WantPlans() { wanted = true; }
bool PlansAreWanted() { return wanted; }

void SharePlans(OpKernelContext* ctx, const std::string& kernel,
                MadePlansPtr plans) {
  if (ctx->step_container() == nullptr) return;
  StepPlans* step = nullptr;
  const Status status = ctx->step_container()->LookupOrCreate<StepPlans>(
      ctx->resource_manager(), kName, &step, [](StepPlans** made) {
        *made = new StepPlans;
        return tensorflow::OkStatus();
      });
  if (!status.ok()) return;  // they will be made again
  ScopedUnref unref(step);
  step->Put(kernel, std::move(plans));
}

std::vector<MadePlansPtr> PlansOfStep(OpKernelContext* ctx) {
  if (ctx->step_container() == nullptr) return {};
  StepPlans* step = nullptr;
  const Status status = ctx->step_container()->Lookup<StepPlans>(
      ctx->resource_manager(), kName, &step);
  if (!status.ok()) return {};
  ScopedUnref unref(step);
  return step->All();
}

}  // namespace picasso

// For tests: how many plans were found instead of made, since the process
// began.
extern "C" __attribute__((visibility("default"))) int64_t PicassoPlansFound() {
  return picasso::found;
}
