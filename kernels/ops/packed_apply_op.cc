#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/core/program.h"
#include "kernels/ops/pack_common.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/util/bcast.h"

namespace picasso {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;
using tensorflow::Tensor;
using tensorflow::TensorBuffer;
using tensorflow::TensorShape;
using tensorflow::Var;
namespace errors = tensorflow::errors;

namespace {

// Variables locked as TensorFlow's dense updates lock them: exclusively those
// that are written. Each mutex once, in ascending address.
template <typename T>
class DenseLocks {
 public:
  DenseLocks() = default;
  DenseLocks(const DenseLocks&) = delete;
  DenseLocks& operator=(const DenseLocks&) = delete;

  ~DenseLocks() {
    for (const auto& [mutex, exclusive] : locked_) {
      if (exclusive) {
        mutex->unlock();
      } else {
        mutex->unlock_shared();
      }
    }
    for (Var* var : vars_) var->Unref();
  }

  // Looks up input `i`, a handle. What is missing is made if it is to be
  // `created`, as a first assignment does; to what is read it is a failed
  // precondition.
  Status Add(OpKernelContext* ctx, int i, bool written, bool read,
             bool created) {
    Var* var = nullptr;
    const auto& handle = tensorflow::HandleFromInput(ctx, i);
    const Status found =
        created ? tensorflow::LookupOrCreateResource<Var>(
                      ctx, handle, &var,
                      [](Var** made) {
                        *made = new Var(tensorflow::DataTypeToEnum<T>::value);
                        return tensorflow::OkStatus();
                      })
                : tensorflow::LookupResource(ctx, handle, &var);
    if (!found.ok()) {
      if (!read || !errors::IsNotFound(found)) return found;
      return errors::FailedPrecondition(
          "Could not find variable ", handle.name(),
          ". This could mean that the variable has been deleted or was never "
          "initialized. ",
          found.ToString());
    }
    vars_.push_back(var);
    locked_.emplace_back(var->mu(), written);
    return tensorflow::OkStatus();
  }

  void Lock() {
    // Of several entries of one mutex the exclusive one comes first and stays.
    std::sort(locked_.begin(), locked_.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    locked_.erase(std::unique(locked_.begin(), locked_.end(),
                              [](const auto& a, const auto& b) {
                                return a.first == b.first;
                              }),
                  locked_.end());
    for (const auto& [mutex, exclusive] : locked_) {
      if (exclusive) {
        mutex->lock();
      } else {
        mutex->lock_shared();
      }
    }
  }

  Var* operator[](int i) const { return vars_[i]; }

 private:
  std::vector<Var*> vars_;  // one reference each
  std::vector<std::pair<tensorflow::mutex*, bool>> locked_;
};

}  // namespace

// See register_apply_ops.cc for the op's contract.
template <typename T>
class PackedApplyOp : public OpKernel {
 public:
  explicit PackedApplyOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string pack;
    std::vector<std::string> lines;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("program", &lines));
    const std::string wrong = program_.Parse(lines);
    OP_REQUIRES(ctx, wrong.empty(), errors::InvalidArgument(wrong));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("members", &members_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &vars_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("C", &counts_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("G", &tensors_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("I", &integers_));
    OP_REQUIRES_OK(ctx, GetIndex(ctx, "var_index", program_.variables, vars_,
                                 &var_index_));
    OP_REQUIRES_OK(ctx, GetIndex(ctx, "count_index", program_.counts, counts_,
                                 &count_index_));
    OP_REQUIRES_OK(ctx, GetIndex(ctx, "tensor_index", program_.tensors,
                                 tensors_, &tensor_index_));
    OP_REQUIRES_OK(ctx, GetIndex(ctx, "integer_index", program_.integers,
                                 integers_, &integer_index_));
    OP_REQUIRES_OK(ctx, GetList(ctx, "member_name", members_, &member_name_));
    written_.assign(vars_, false);
    read_first_.assign(vars_, false);
    assigned_first_.assign(vars_, false);
    for (size_t k = 0; k < var_index_.size(); ++k) {
      const int local = k % program_.variables, i = var_index_[k];
      written_[i] = written_[i] || program_.written[local];
      read_first_[i] = read_first_[i] || program_.read_first[local];
      assigned_first_[i] = assigned_first_[i] || program_.assigned_first[local];
    }
    OP_REQUIRES(ctx,
                std::find(program_.written.begin(), program_.written.end(),
                          true) != program_.written.end(),
                errors::InvalidArgument("The program writes no variable."));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("pack", &pack));
    counters_ = CountersOf(pack);
    ++counters_->created;
  }

  void Compute(OpKernelContext* ctx) override {
    DenseLocks<T> vars;
    for (int i = 0; i < vars_ + counts_; ++i) {
      const bool counter = i >= vars_;
      OP_REQUIRES_OK(ctx, vars.Add(ctx, i, !counter && written_[i],
                                   counter || read_first_[i],
                                   !counter && assigned_first_[i]));
    }
    vars.Lock();
    State state(this, ctx, vars);
    OP_REQUIRES_OK(ctx, state.Prepare());
    RunProgram<T>(program_, state.members.data(), members_, state.ordered,
                  PoolOf(ctx));
    ++counters_->executed;
  }

 private:
  // What one run of the kernel works with.
  struct State {
    State(const PackedApplyOp* op, OpKernelContext* ctx,
          const DenseLocks<T>& vars)
        : op(op), ctx(ctx), vars(vars) {}

    Status Prepare() {
      const Program& program = op->program_;
      members.resize(op->members_);
      shapes.resize(op->members_);
      variables.resize(op->members_ * program.variables);
      variable_is_scalar.reset(new bool[variables.size() + 1]());
      tensors.resize(op->members_ * program.tensors);
      tensor_is_scalar.reset(new bool[tensors.size() + 1]());
      tensor_is_copied.reset(new bool[tensors.size() + 1]());
      counts.resize(op->members_ * program.counts);
      integers.resize(op->members_ * program.integers);
      for (int m = 0; m < op->members_; ++m) TF_RETURN_IF_ERROR(FindShape(m));
      FindUsers();
      for (int m = 0; m < op->members_; ++m) {
        for (int v = 0; v < program.variables; ++v) {
          if (!program.written[v]) continue;
          TF_RETURN_IF_ERROR(PrepareToWrite(m, variable(m, v)));
        }
      }
      for (int m = 0; m < op->members_; ++m) {
        TF_RETURN_IF_ERROR(FillVariables(m));
        TF_RETURN_IF_ERROR(FillTensors(m));
        TF_RETURN_IF_ERROR(FillIntegers(m));
        ProgramMember<T>& member = members[m];
        member.variables = variables.data() + m * program.variables;
        member.variable_is_scalar =
            variable_is_scalar.get() + m * program.variables;
        member.tensors = tensors.data() + m * program.tensors;
        member.tensor_is_scalar = tensor_is_scalar.get() + m * program.tensors;
        member.tensor_is_copied = tensor_is_copied.get() + m * program.tensors;
        member.counts = counts.data() + m * program.counts;
        member.integers = integers.data() + m * program.integers;
        member.size = shapes[m].num_elements();
      }
      return tensorflow::OkStatus();
    }

    Var* variable(int m, int v) const {
      return vars[op->var_index_[m * op->program_.variables + v]];
    }
    const Tensor& tensor(int m, int t) const {
      return ctx->input(op->vars_ + op->counts_ +
                        op->tensor_index_[m * op->program_.tensors + t]);
    }

    // The shape of the member's variables; of its operands, if it gives a
    // variable its first value.
    Status FindShape(int m) {
      const Program& program = op->program_;
      bool found = false;
      for (int v = 0; v < program.variables; ++v) {
        const Tensor& value = *variable(m, v)->tensor();
        if (!value.IsInitialized()) {
          if (program.assigned_first[v]) continue;
          return errors::FailedPrecondition(
              "Attempting to use uninitialized variables: '",
              op->member_name_[m], "' or one of its slots.");
        }
        if (value.dtype() != tensorflow::DataTypeToEnum<T>::value) {
          return errors::InvalidArgument(
              "A variable of '", op->member_name_[m],
              "' is not of the declared type: ", value.DebugString(0));
        }
        if (!program.written[v]) continue;
        if (found && value.shape() != shapes[m]) {
          return errors::InvalidArgument(
              "The variables of '", op->member_name_[m],
              "' differ in shape: ", value.shape().DebugString(), " and ",
              shapes[m].DebugString());
        }
        shapes[m] = value.shape();
        found = true;
      }
      if (found) return tensorflow::OkStatus();
      tensorflow::BCast::Vec all;
      for (int t = 0; t < program.tensors; ++t) {
        const auto dims = tensorflow::BCast::FromShape(tensor(m, t).shape());
        const tensorflow::BCast both(all, dims);
        if (!both.IsValid()) return ShapeError(m, tensor(m, t).shape());
        all = both.output_shape();
      }
      shapes[m] = tensorflow::BCast::ToShape(all);
      return tensorflow::OkStatus();
    }

    Status ShapeError(int m, const TensorShape& shape) const {
      return errors::InvalidArgument(
          "Incompatible shapes: ", shapes[m].DebugString(), " vs. ",
          shape.DebugString(), " (variable '", op->member_name_[m], "')");
    }

    // Who uses which memory: what two members touch and one of them writes is
    // run in order, and what only its own member reads need not be copied.
    void FindUsers() {
      const Program& program = op->program_;
      writers.reserve(variables.size());
      readers.reserve(tensors.size());
      held.reserve(op->tensors_);
      for (int m = 0; m < op->members_; ++m) {
        for (int v = 0; v < program.variables; ++v) {
          if (!program.written[v]) continue;
          const auto [entry, inserted] = writers.emplace(variable(m, v), m);
          ordered = ordered || (!inserted && entry->second != m);
        }
      }
      for (int m = 0; m < op->members_; ++m) {
        for (int v = 0; v < program.variables; ++v) {
          const auto writer = writers.find(variable(m, v));
          ordered = ordered || (writer != writers.end() && writer->second != m);
        }
        for (int t = 0; t < program.tensors; ++t) {
          const TensorBuffer* buffer =
              tensorflow::DMAHelper::buffer(&tensor(m, t));
          if (buffer == nullptr) continue;
          const auto [entry, inserted] = readers.emplace(buffer, m);
          if (!inserted && entry->second != m) entry->second = -1;
        }
      }
      for (int i = 0; i < op->tensors_; ++i) {
        ++held[tensorflow::DMAHelper::buffer(
            &ctx->input(op->vars_ + op->counts_ + i))];
      }
    }

    Status FillVariables(int m) {
      const Program& program = op->program_;
      for (int v = 0; v < program.variables; ++v) {
        Tensor* value = variable(m, v)->tensor();
        const int at = m * program.variables + v;
        if (value->shape() != shapes[m]) {
          if (program.written[v] || value->NumElements() != 1 ||
              value->dims() > shapes[m].dims()) {
            return ShapeError(m, value->shape());
          }
          variable_is_scalar[at] = true;
        }
        variables[at] = value->flat<T>().data();
      }
      return tensorflow::OkStatus();
    }

    // Makes sure that nobody sees the variable's memory change. What the
    // member itself reads of it is read before it is written.
    Status PrepareToWrite(int m, Var* var) {
      Tensor* value = var->tensor();
      if (value->IsInitialized()) {
        const TensorBuffer* buffer = tensorflow::DMAHelper::buffer(value);
        const auto ours = held.find(buffer);
        if (ours == held.end()) {
          if (value->RefCountIsOne()) return tensorflow::OkStatus();
        } else if (readers[buffer] == m && buffer->OwnsMemory() &&
                   buffer->RefCount() == 1 + ours->second) {
          in_place.emplace(buffer, m);
          return tensorflow::OkStatus();
        }
      }
      tensorflow::AllocatorAttributes attr;
      attr.set_gpu_compatible(true);
      attr.set_nic_compatible(true);
      Tensor copy;
      TF_RETURN_IF_ERROR(ctx->allocate_temp(
          tensorflow::DataTypeToEnum<T>::value, shapes[m], &copy, attr));
      if (value->IsInitialized()) {
        copy.flat<T>().device(ctx->eigen_cpu_device()) =
            static_cast<const Tensor*>(value)->flat<T>();
      }
      *value = copy;
      var->is_initialized = true;
      return tensorflow::OkStatus();
    }

    Status FillTensors(int m) {
      const Program& program = op->program_;
      for (int t = 0; t < program.tensors; ++t) {
        const Tensor& value = tensor(m, t);
        const int at = m * program.tensors + t;
        tensors[at] = value.flat<T>().data();
        if (value.shape() == shapes[m]) {
          const TensorBuffer* buffer = tensorflow::DMAHelper::buffer(&value);
          tensor_is_copied[at] = in_place.count(buffer) > 0;
          continue;
        }
        if (value.NumElements() == 1 && value.dims() <= shapes[m].dims()) {
          tensor_is_scalar[at] = true;
          scalars.push_back(*tensors[at]);  // its memory may be a variable's
          tensors[at] = &scalars.back();
          continue;
        }
        TF_RETURN_IF_ERROR(Broadcast(m, value, at));
      }
      return tensorflow::OkStatus();
    }

    Status Broadcast(int m, const Tensor& value, int at) {
      const int dims = shapes[m].dims();
      const int missing = dims - value.dims();
      bool fits = missing >= 0;
      for (int d = 0; fits && d < value.dims(); ++d) {
        const int64_t size = value.dim_size(d);
        fits = size == 1 || size == shapes[m].dim_size(d + missing);
      }
      if (!fits) return ShapeError(m, value.shape());
      Tensor whole;
      TF_RETURN_IF_ERROR(ctx->allocate_temp(
          tensorflow::DataTypeToEnum<T>::value, shapes[m], &whole));
      std::vector<int64_t> stride(dims, 0), index(dims, 0);
      int64_t step = 1;
      for (int d = value.dims() - 1; d >= 0; --d) {
        stride[d + missing] = value.dim_size(d) == 1 ? 0 : step;
        step *= value.dim_size(d);
      }
      const T* from = value.flat<T>().data();
      T* to = whole.flat<T>().data();
      for (int64_t i = 0, size = shapes[m].num_elements(); i < size; ++i) {
        to[i] = *from;
        for (int d = dims - 1; d >= 0; --d) {
          from += stride[d];
          if (++index[d] < shapes[m].dim_size(d)) break;
          from -= stride[d] * index[d];
          index[d] = 0;
        }
      }
      tensors[at] = to;
      broadcast.push_back(whole);
      return tensorflow::OkStatus();
    }

    Status FillIntegers(int m) {
      const Program& program = op->program_;
      for (int c = 0; c < program.counts; ++c) {
        const int at = m * program.counts + c;
        const Tensor& value = *vars[op->vars_ + op->count_index_[at]]->tensor();
        if (!value.IsInitialized()) {
          return errors::FailedPrecondition(
              "Attempting to use uninitialized variables: a counter of '",
              op->member_name_[m], "'.");
        }
        if (value.dtype() != tensorflow::DT_INT64 || value.NumElements() != 1) {
          return errors::InvalidArgument("A counter is not an int64 scalar: ",
                                         value.DebugString(0));
        }
        counts[at] = value.flat<int64_t>()(0);
      }
      const int first = op->vars_ + op->counts_ + op->tensors_;
      for (int n = 0; n < program.integers; ++n) {
        const int at = m * program.integers + n;
        const Tensor& value = ctx->input(first + op->integer_index_[at]);
        if (value.NumElements() != 1) {
          return errors::InvalidArgument("An integer is not a scalar: ",
                                         value.DebugString(0));
        }
        integers[at] = value.flat<int64_t>()(0);
      }
      return tensorflow::OkStatus();
    }

    const PackedApplyOp* op;
    OpKernelContext* ctx;
    const DenseLocks<T>& vars;
    std::vector<ProgramMember<T>> members;
    std::vector<TensorShape> shapes;
    std::vector<T*> variables;
    std::unique_ptr<bool[]> variable_is_scalar;
    std::vector<const T*> tensors;
    std::unique_ptr<bool[]> tensor_is_scalar;
    std::unique_ptr<bool[]> tensor_is_copied;
    std::vector<int64_t> counts;
    std::vector<int64_t> integers;
    std::deque<T> scalars;
    std::vector<Tensor> broadcast;
    std::unordered_map<const Var*, int> writers;
    std::unordered_map<const TensorBuffer*, int>
        readers;                                        // -1: several members
    std::unordered_map<const TensorBuffer*, int> held;  // inputs that hold it
    std::unordered_map<const TensorBuffer*, int> in_place;
    bool ordered = false;
  };

  // One entry per member and name in the program, each below `inputs`.
  Status GetIndex(OpKernelConstruction* ctx, const char* name, int per_member,
                  int inputs, std::vector<int>* index) {
    TF_RETURN_IF_ERROR(GetList(ctx, name, members_ * per_member, index));
    for (int i : *index) {
      if (i < 0 || i >= inputs) {
        return errors::InvalidArgument("Attribute '", name, "' names input ", i,
                                       " of ", inputs, ".");
      }
    }
    return tensorflow::OkStatus();
  }

  Program program_;
  int members_ = 0;
  int vars_ = 0;
  int counts_ = 0;
  int tensors_ = 0;
  int integers_ = 0;
  std::vector<int> var_index_;
  std::vector<int> count_index_;
  std::vector<int> tensor_index_;
  std::vector<int> integer_index_;
  std::vector<bool> written_;  // by input, as the program says
  std::vector<bool> read_first_;
  std::vector<bool> assigned_first_;
  std::vector<std::string> member_name_;
  PackCounters* counters_ = nullptr;
};

PICASSO_REGISTER_FLOATS("PicassoPackedApply", "T", PackedApplyOp);

}  // namespace picasso
