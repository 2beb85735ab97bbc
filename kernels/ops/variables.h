// Access to many resource variables at once, under TensorFlow's rules for
// sparse access.
#ifndef PICASSO_TF_KERNELS_OPS_VARIABLES_H_
#define PICASSO_TF_KERNELS_OPS_VARIABLES_H_

#include <algorithm>
#include <vector>

#include "kernels/ops/pack_common.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/kernels/training_op_helpers.h"

namespace picasso {

// What a kernel does with the variables that it locks.
enum class Access {
  // Copies values out while it holds shared locks. Needs no copy-on-read mode:
  // that mode protects those who keep a reference to the buffer (a value that
  // ReadVariableOp handed out) from writes in place under a shared lock, and
  // such a kernel keeps none. Dense writes take the lock exclusively. Tables so
  // stay out of the mode, in which each dense read and write copies them.
  kRead,
  kSparseWrite,     // writes rows in place, under shared locks
  kExclusiveWrite,  // writes rows in place, alone (`use_locking`)
};

// The variables behind a kernel's handles, locked until this object goes.
//
// What could go wrong with many variables, and how it is avoided:
// - Two handles may name one variable, and a second shared lock on a mutex
//   deadlocks once a writer waits for it: each distinct mutex is locked once.
// - Two kernels may want the same mutexes: all lock in ascending address.
// - EnsureSparseVariableAccess locks the variable itself, so it runs while no
//   lock is held; another kernel may turn copy-on-read off again before ours
//   are taken, so the mode is checked under the locks, and all of it retried.
template <typename T>
class LockedVariables {
 public:
  LockedVariables() = default;
  LockedVariables(const LockedVariables&) = delete;
  LockedVariables& operator=(const LockedVariables&) = delete;

  ~LockedVariables() {
    Unlock();
    for (tensorflow::Var* var : vars_) {
      if (var != nullptr) var->Unref();
    }
  }

  // Looks up handles [first, first + count) of the kernel's inputs. May be
  // called several times, before Lock.
  tensorflow::Status Add(tensorflow::OpKernelContext* ctx, int first,
                         int count) {
    const size_t before = vars_.size();
    vars_.resize(before + count);
    std::vector<tensorflow::Status> found(count);
    PoolOf(ctx)(count, kLookUpCycles, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        found[i] = tensorflow::LookupResource(
            ctx, tensorflow::HandleFromInput(ctx, first + i),
            &vars_[before + i]);
      }
    });
    for (const tensorflow::Status& status : found) TF_RETURN_IF_ERROR(status);
    return tensorflow::OkStatus();
  }

  // Locks every variable as TensorFlow's kernels of that access do; for writes
  // in place, switches it to copy-on-read mode before.
  tensorflow::Status Lock(tensorflow::OpKernelContext* ctx, Access access) {
    exclusive_ = access == Access::kExclusiveWrite;
    distinct_ = vars_;
    std::sort(distinct_.begin(), distinct_.end(),
              [](tensorflow::Var* a, tensorflow::Var* b) {
                return a->mu() < b->mu();
              });
    distinct_.erase(std::unique(distinct_.begin(), distinct_.end()),
                    distinct_.end());
    if (access == Access::kRead) {
      LockAll();
      return tensorflow::OkStatus();
    }
    while (true) {
      for (size_t i = 0; i < distinct_.size(); ++i) {
        AskFor(i + kAhead);
        TF_RETURN_IF_ERROR(
            (tensorflow::EnsureSparseVariableAccess<Eigen::ThreadPoolDevice, T>(
                ctx, distinct_[i])));
      }
      LockAll();
      const bool all_sparse = std::all_of(
          distinct_.begin(), distinct_.end(),
          [](tensorflow::Var* var) { return var->copy_on_read_mode.load(); });
      if (all_sparse) return tensorflow::OkStatus();
      Unlock();
    }
  }

  // Whether two handles name one variable.
  bool aliased() const { return distinct_.size() < vars_.size(); }

  // The value behind handle number i, in the order of Add.
  tensorflow::Tensor* value(int i) const { return vars_[i]->tensor(); }

 private:
  // To find a variable by its handle, most of it waiting for memory.
  static constexpr int64_t kLookUpCycles = 700;
  static constexpr size_t kAhead = 8;

  // Thousands of variables, used once a step, are in no cache when it comes.
  void AskFor(size_t i) const {
    if (i >= distinct_.size()) return;
    const char* var = reinterpret_cast<const char*>(distinct_[i]);
    for (size_t at = 0; at < sizeof(tensorflow::Var); at += 64) {
      __builtin_prefetch(var + at, 1);
    }
  }

  void LockAll() {
    for (size_t i = 0; i < distinct_.size(); ++i) {
      AskFor(i + kAhead);
      if (exclusive_) {
        distinct_[i]->mu()->lock();
      } else {
        distinct_[i]->mu()->lock_shared();
      }
    }
    locked_ = true;
  }

  void Unlock() {
    if (!locked_) return;
    for (tensorflow::Var* var : distinct_) {
      if (exclusive_) {
        var->mu()->unlock();
      } else {
        var->mu()->unlock_shared();
      }
    }
    locked_ = false;
  }

  std::vector<tensorflow::Var*> vars_;      // one reference each
  std::vector<tensorflow::Var*> distinct_;  // ascending by mutex address
  bool exclusive_ = false;
  bool locked_ = false;
};

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_OPS_VARIABLES_H_
