// Packs of the ops that prepare sparse tensors. See register_kernel_ops.cc for
// the ops' contracts. Errors are worded as those of the ops that they replace.
#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/ops/fingerprint.h"
#include "kernels/ops/packed_kernel.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/fingerprint.h"

namespace picasso {

using tensorflow::DataType;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorShapeUtils;
using tensorflow::tstring;
namespace errors = tensorflow::errors;

// -- SparseReshape ------------------------------------------------------------

class PackedSparseReshapeOp : public PackedKernel {
 public:
  using PackedKernel::PackedKernel;

 protected:
  Status Run(OpKernelContext* ctx) const override {
    const int count = members();
    std::vector<Member> all(count);
    for (int m = 0; m < count; ++m) {
      TF_RETURN_IF_ERROR(Describe(ctx, m, &all[m]));
    }
    const int64_t cost = 64 + 16 * MeanElements(ctx, 0, count);
    return ForMembers(ctx, count, cost, [&](int m) {
      Write(all[m]);
      return tensorflow::OkStatus();
    });
  }

 private:
  struct Member {
    const int64_t* from = nullptr;
    int64_t* to = nullptr;  // nullptr: nothing to write
    int64_t rows = 0;
    TensorShape before;
    TensorShape after;
  };

  Status Describe(OpKernelContext* ctx, int m, Member* member) const {
    const int count = members();
    const Tensor& indices = ctx->input(m);
    const Tensor& shape = ctx->input(count + m);
    const Tensor& target = ctx->input(2 * count + m);
    if (!TensorShapeUtils::IsMatrix(indices.shape())) {
      return errors::InvalidArgument("Input must be a matrix. Got ",
                                     indices.shape().DebugString());
    }
    if (!TensorShapeUtils::IsVector(shape.shape())) {
      return errors::InvalidArgument("Input shape must be a vector. Got ",
                                     shape.shape().DebugString());
    }
    if (!TensorShapeUtils::IsVector(target.shape())) {
      return errors::InvalidArgument(
          "Target shape should be a vector but received shape ",
          target.shape().DebugString());
    }
    TF_RETURN_IF_ERROR(
        TensorShape::BuildTensorShape(shape.vec<int64_t>(), &member->before));
    int64_t product = 1;
    TF_RETURN_IF_ERROR(Resolve(target, member, &product));
    const TensorShape& before = member->before;
    const TensorShape& after = member->after;
    if (before == after) {
      ctx->set_output(m, indices);
      ctx->set_output(count + m, shape);
      return tensorflow::OkStatus();
    }
    Tensor *out = nullptr, *sizes = nullptr;
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(count + m, TensorShape({after.dims()}), &sizes));
    for (int d = 0; d < after.dims(); ++d) {
      sizes->vec<int64_t>()(d) = after.dim_size(d);
    }
    member->rows = indices.dim_size(0);
    TF_RETURN_IF_ERROR(ctx->allocate_output(
        m, TensorShape({member->rows, after.dims()}), &out));
    if (member->rows == 0) return tensorflow::OkStatus();
    if (before.num_elements() <= 0 || product <= 0) {
      return errors::InvalidArgument(
          "Input tensor has ", member->rows,
          " non zero elements but input shape (", before.DebugString(),
          ") or output shape (", after.DebugString(), ") is empty");
    }
    if (indices.dim_size(1) != before.dims()) {
      // Stock reads past the row's end.
      return errors::InvalidArgument("Indices of ", indices.dim_size(1),
                                     " dimensions for the shape ",
                                     before.DebugString());
    }
    member->from = indices.flat<int64_t>().data();
    member->to = out->flat<int64_t>().data();
    return tensorflow::OkStatus();
  }

  // The new shape, with what stands for -1.
  static Status Resolve(const Tensor& target, Member* member,
                        int64_t* product) {
    const int64_t elements = member->before.num_elements();
    TensorShape* after = &member->after;
    int unknown = -1;
    for (int d = 0; d < target.NumElements(); ++d) {
      const int64_t size = target.vec<int64_t>()(d);
      if (size == -1) {
        if (unknown != -1) {
          return errors::InvalidArgument(
              "only one output dimension may be -1, not both ", unknown,
              " and ", d);
        }
        unknown = d;
        TF_RETURN_IF_ERROR(after->AddDimWithStatus(1));
        continue;
      }
      if (size < 0) {
        return errors::InvalidArgument("size ", d,
                                       " must be non-negative, not ", size);
      }
      *product *= size;
      TF_RETURN_IF_ERROR(after->AddDimWithStatus(size));
    }
    if (unknown != -1) {
      if (*product <= 0) {
        return errors::InvalidArgument(
            "reshape cannot infer the missing input size for an empty tensor "
            "unless all specified input sizes are non-zero");
      }
      const int64_t missing = elements / *product;
      if (*product * missing != elements) {
        return errors::InvalidArgument(
            "Input to reshape is a SparseTensor with ", elements,
            " dense values, but the requested shape requires a multiple of ",
            *product, ". input_shape=", member->before.DebugString(),
            " output_shape=", after->DebugString());
      }
      after->set_dim(unknown, missing);
    }
    if (after->num_elements() != elements) {
      return errors::InvalidArgument(
          "Input to reshape is a tensor with ", elements,
          " dense values, but the requested shape has ", after->num_elements(),
          ". input_shape=", member->before.DebugString(),
          " output_shape=", after->DebugString());
    }
    return tensorflow::OkStatus();
  }

  static std::vector<int64_t> Strides(const TensorShape& shape) {
    std::vector<int64_t> strides(shape.dims(), 1);
    for (int d = shape.dims() - 2; d >= 0; --d) {
      strides[d] = strides[d + 1] * shape.dim_size(d + 1);
    }
    return strides;
  }

  static void Write(const Member& member) {
    if (member.to == nullptr) return;
    const std::vector<int64_t> before = Strides(member.before);
    const std::vector<int64_t> after = Strides(member.after);
    const int64_t* from = member.from;
    int64_t* to = member.to;
    for (int64_t i = 0; i < member.rows; ++i) {
      int64_t at = 0;
      for (const int64_t stride : before) at += *from++ * stride;
      for (const int64_t stride : after) {
        *to++ = at / stride;
        at %= stride;
      }
    }
  }
};

// -- SparseToDense ------------------------------------------------------------

template <typename T>
class PackedSparseToDenseOp : public PackedKernel {
 public:
  explicit PackedSparseToDenseOp(OpKernelConstruction* ctx)
      : PackedKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("validate_indices", &validate_));
  }

 protected:
  Status Run(OpKernelContext* ctx) const override {
    const int count = members();
    std::vector<Tensor*> out(count);
    int64_t written = 0;
    for (int m = 0; m < count; ++m) {
      TF_RETURN_IF_ERROR(Allocate(ctx, m, &out[m]));
      written += out[m]->NumElements();
    }
    const int64_t cost =
        64 + written / count + 16 * MeanElements(ctx, 0, count);
    return ForMembers(ctx, count, cost,
                      [&](int m) { return Write(ctx, m, out[m]); });
  }

 private:
  Status Allocate(OpKernelContext* ctx, int m, Tensor** out) const {
    const int count = members();
    const Tensor& indices = ctx->input(m);
    const Tensor& shape = ctx->input(count + m);
    const Tensor& values = ctx->input(2 * count + m);
    if (indices.dims() > 2) {
      return errors::InvalidArgument(
          "sparse_indices should be a scalar, vector, or matrix, got shape ",
          indices.shape().DebugString());
    }
    const int64_t elements = indices.dims() > 0 ? indices.dim_size(0) : 1;
    const int64_t rank = indices.dims() > 1 ? indices.dim_size(1) : 1;
    if (!TensorShapeUtils::IsVector(shape.shape())) {
      return errors::InvalidArgument("output_shape must be rank 1, got shape ",
                                     shape.shape().DebugString());
    }
    if (shape.NumElements() != rank) {
      return errors::InvalidArgument(
          "output_shape has incorrect number of elements: ",
          shape.NumElements(), " should be: ", rank);
    }
    if (values.dims() != 0 &&
        (values.dims() != 1 || values.NumElements() != elements)) {
      return errors::InvalidArgument("sparse_values has incorrect shape ",
                                     values.shape().DebugString(),
                                     ", should be [] or [", elements, "]");
    }
    if (ctx->input(3 * count + m).dims() != 0) {
      return errors::InvalidArgument("default_value should be a scalar.");
    }
    TensorShape dense;
    TF_RETURN_IF_ERROR(
        TensorShape::BuildTensorShape(shape.vec<int64_t>(), &dense));
    return ctx->allocate_output(m, dense, out);
  }

  Status Write(OpKernelContext* ctx, int m, Tensor* out) const {
    const int count = members();
    const Tensor& indices = ctx->input(m);
    const Tensor& values = ctx->input(2 * count + m);
    const TensorShape& shape = out->shape();
    const int rank = shape.dims();
    const int64_t elements = indices.dims() > 0 ? indices.dim_size(0) : 1;
    const bool alike = values.dims() == 0;
    const int64_t* index = indices.flat<int64_t>().data();
    const T* value = values.flat<T>().data();
    T* const to = out->flat<T>().data();
    std::fill(to, to + out->NumElements(),
              ctx->input(3 * count + m).template scalar<T>()());
    int64_t before = -1;
    for (int64_t i = 0; i < elements; ++i, index += rank) {
      int64_t at = 0;
      bool inside = true;
      for (int d = 0; d < rank; ++d) {
        inside &= index[d] >= 0 && index[d] < shape.dim_size(d);
        at = at * shape.dim_size(d) + index[d];
      }
      if (!inside) {
        if (validate_) {
          return Invalid(index, rank, i,
                         " is out of bounds: need 0 <= index < [" +
                             Joined(shape.dim_sizes()) + "]");
        }
        return errors::InvalidArgument(
            "Indices are not valid (out of bounds).  Shape: ",
            shape.DebugString());
      }
      if (validate_ && at <= before) {
        const bool repeated = at == before;
        return Invalid(
            index, rank, i,
            repeated ? " is repeated"
                     : " is out of order. Many sparse ops require sorted "
                       "indices.\n    Use `tf.sparse.reorder` to create a "
                       "correctly ordered copy.\n\n");
      }
      before = at;
      to[at] = value[alike ? 0 : i];
    }
    return tensorflow::OkStatus();
  }

  template <typename Sizes>
  static std::string Joined(const Sizes& sizes) {
    std::string joined;
    for (const int64_t size : sizes) {
      if (!joined.empty()) joined += ',';
      joined += std::to_string(size);
    }
    return joined;
  }

  static Status Invalid(const int64_t* index, int rank, int64_t i,
                        const std::string& why) {
    const std::vector<int64_t> sizes(index, index + rank);
    return errors::InvalidArgument("indices[", i, "] = [", Joined(sizes), "]",
                                   why);
  }

  bool validate_ = true;
};

// -- SparseCross --------------------------------------------------------------

class PackedSparseCrossOp : public PackedKernel {
 public:
  explicit PackedSparseCrossOp(OpKernelConstruction* ctx) : PackedKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetList(ctx, "num_buckets", members(), &buckets_));
    OP_REQUIRES_OK(ctx, GetList(ctx, "hash_key", members(), &keys_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("sparse_columns", &sparse_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dense_columns", &dense_));
    const int columns = 3 * sparse_ + dense_;
    OP_REQUIRES(ctx,
                sparse_ >= 0 && dense_ >= 0 && sparse_ + dense_ > 0 &&
                    ctx->num_inputs() == columns * members(),
                errors::InvalidArgument(ctx->num_inputs(), " inputs for ",
                                        members(), " members."));
  }

 protected:
  Status Run(OpKernelContext* ctx) const override {
    const int count = members();
    std::vector<Member> all(count);
    const int64_t elements = MeanElements(ctx, 0, ctx->num_inputs());
    const int64_t cost = 256 + 64 * elements * (sparse_ + dense_);
    TF_RETURN_IF_ERROR(ForMembers(
        ctx, count, cost, [&](int m) { return Describe(ctx, m, &all[m]); }));
    for (int m = 0; m < count; ++m) {
      Member& member = all[m];
      Tensor *indices = nullptr, *values = nullptr, *shape = nullptr;
      TF_RETURN_IF_ERROR(
          ctx->allocate_output(m, TensorShape({member.total, 2}), &indices));
      TF_RETURN_IF_ERROR(ctx->allocate_output(
          count + m, TensorShape({member.total}), &values));
      TF_RETURN_IF_ERROR(
          ctx->allocate_output(2 * count + m, TensorShape({2}), &shape));
      shape->vec<int64_t>()(0) = member.batch;
      shape->vec<int64_t>()(1) = member.widest;
      member.indices = indices->flat<int64_t>().data();
      member.values = values->flat<int64_t>().data();
    }
    return ForMembers(ctx, count, cost, [&](int m) {
      Write(all[m], m);
      return tensorflow::OkStatus();
    });
  }

 private:
  // One column of a member. Its features lie row by row.
  struct Column {
    const tstring* texts = nullptr;
    const int64_t* numbers = nullptr;
    std::vector<int64_t> starts;  // of each row, and the end

    uint64_t Feature(int64_t i) const {
      return texts != nullptr ? Fingerprint(texts[i])
                              : static_cast<uint64_t>(numbers[i]);
    }
    void Read(const Tensor& tensor) {
      if (tensor.dtype() == tensorflow::DT_STRING) {
        texts = tensor.flat<tstring>().data();
      } else {
        numbers = tensor.flat<int64_t>().data();
      }
    }
  };

  struct Member {
    int64_t batch = 0;
    int64_t total = 0;
    int64_t widest = 0;
    std::vector<Column> columns;
    int64_t* indices = nullptr;
    int64_t* values = nullptr;
  };

  const Tensor& Input(OpKernelContext* ctx, int list, int m) const {
    return ctx->input(list * members() + m);
  }

  Status Describe(OpKernelContext* ctx, int m, Member* member) const {
    TF_RETURN_IF_ERROR(Check(ctx, m, member));
    const int64_t batch = member->batch;
    member->columns.resize(sparse_ + dense_);
    for (int c = 0; c < sparse_; ++c) {
      Column& column = member->columns[c];
      const Tensor& indices = Input(ctx, c, m);
      column.Read(Input(ctx, sparse_ + c, m));
      const int64_t* row = indices.flat<int64_t>().data();
      const int64_t size = indices.dim_size(0);
      int64_t at = 0;
      column.starts.reserve(batch + 1);
      column.starts.push_back(0);
      for (int64_t b = 0; b < batch; ++b) {
        while (at < size && row[2 * at] == b) ++at;
        column.starts.push_back(at);
      }
    }
    for (int c = 0; c < dense_; ++c) {
      Column& column = member->columns[sparse_ + c];
      const Tensor& tensor = Input(ctx, 3 * sparse_ + c, m);
      column.Read(tensor);
      for (int64_t b = 0; b <= batch; ++b) {
        column.starts.push_back(b * tensor.dim_size(1));
      }
    }
    for (int64_t b = 0; b < batch; ++b) {
      int64_t crosses = 1;
      for (const Column& column : member->columns) {
        crosses *= column.starts[b + 1] - column.starts[b];
      }
      member->total += crosses;
      member->widest = std::max(member->widest, crosses);
    }
    return tensorflow::OkStatus();
  }

  // What stock refuses; and the batch size.
  Status Check(OpKernelContext* ctx, int m, Member* member) const {
    for (int c = 0; c < sparse_; ++c) {
      const Tensor& indices = Input(ctx, c, m);
      if (!TensorShapeUtils::IsMatrix(indices.shape())) {
        return errors::InvalidArgument(
            "Input indices should be a matrix but received shape ",
            indices.shape().DebugString(), " at position ", c);
      }
      if (indices.dim_size(1) != 2) {
        return errors::InvalidArgument("Expected D2 of index to be 2 got ",
                                       indices.dim_size(1), " at position ", c);
      }
    }
    for (int c = 0; c < sparse_; ++c) {
      const Tensor& values = Input(ctx, sparse_ + c, m);
      if (!TensorShapeUtils::IsVector(values.shape())) {
        return errors::InvalidArgument(
            "Input values should be a vector but received shape ",
            values.shape().DebugString(), " at position ", c);
      }
      const int64_t rows = Input(ctx, c, m).dim_size(0);
      if (rows != values.dim_size(0)) {
        return errors::InvalidArgument("Expected size of values to be ", rows,
                                       " got ", values.dim_size(0),
                                       " at position ", c);
      }
    }
    for (int c = 0; c < sparse_; ++c) {
      const Tensor& shape = Input(ctx, 2 * sparse_ + c, m);
      if (!TensorShapeUtils::IsVector(shape.shape())) {
        return errors::InvalidArgument(
            "Input shapes should be a vector but received shape ",
            shape.shape().DebugString(), " at position ", c);
      }
      if (shape.NumElements() != 2) {
        return errors::InvalidArgument(
            "shape should imply a 2D tensor, but got ",
            shape.shape().DebugString(), " at position ", c);
      }
    }
    for (int c = 0; c < dense_; ++c) {
      const Tensor& tensor = Input(ctx, 3 * sparse_ + c, m);
      if (!TensorShapeUtils::IsMatrix(tensor.shape())) {
        return errors::InvalidArgument(
            "Dense inputs should be a matrix but received shape ",
            tensor.shape().DebugString(), " at position ", c);
      }
    }
    member->batch = sparse_ > 0 ? Input(ctx, 2 * sparse_, m).vec<int64_t>()(0)
                                : Input(ctx, 3 * sparse_, m).dim_size(0);
    for (int c = 0; c < sparse_; ++c) {
      const int64_t size = Input(ctx, 2 * sparse_ + c, m).vec<int64_t>()(0);
      if (size != member->batch) {
        return errors::InvalidArgument("Expected batch size ", member->batch,
                                       " got ", size, " at position ", c);
      }
    }
    for (int c = 0; c < dense_; ++c) {
      const int64_t size = Input(ctx, 3 * sparse_ + c, m).dim_size(0);
      if (size != member->batch) {
        return errors::InvalidArgument("Expected batch size ", member->batch,
                                       " got ", size, " at dense tensor ", c);
      }
    }
    return tensorflow::OkStatus();
  }

  void Write(const Member& member, int m) const {
    const int columns = member.columns.size();
    const uint64_t buckets =
        buckets_[m] > 0 ? buckets_[m] : std::numeric_limits<int64_t>::max();
    std::vector<int64_t> at(columns);
    // The hash of what is crossed up to a column: the last column goes fastest.
    std::vector<uint64_t> hashes(columns + 1, static_cast<uint64_t>(keys_[m]));
    int64_t* index = member.indices;
    int64_t* value = member.values;
    for (int64_t b = 0; b < member.batch; ++b) {
      bool some = true;
      for (int c = 0; c < columns; ++c) {
        at[c] = member.columns[c].starts[b];
        some &= at[c] < member.columns[c].starts[b + 1];
      }
      int changed = 0;
      for (int64_t n = 0; some; ++n) {
        for (int c = changed; c < columns; ++c) {
          hashes[c + 1] = tensorflow::FingerprintCat64(
              hashes[c], member.columns[c].Feature(at[c]));
        }
        *index++ = b;
        *index++ = n;
        *value++ = hashes[columns] % buckets;
        for (changed = columns - 1; changed >= 0; --changed) {
          if (++at[changed] < member.columns[changed].starts[b + 1]) break;
          at[changed] = member.columns[changed].starts[b];
        }
        some = changed >= 0;
      }
    }
  }

  std::vector<int64_t> buckets_;
  std::vector<int64_t> keys_;
  int sparse_ = 0;
  int dense_ = 0;
};

REGISTER_KERNEL_BUILDER(
    Name("PicassoPackedSparseReshape").Device(tensorflow::DEVICE_CPU),
    PackedSparseReshapeOp);
REGISTER_KERNEL_BUILDER(
    Name("PicassoPackedSparseCross").Device(tensorflow::DEVICE_CPU),
    PackedSparseCrossOp);

#define REGISTER(T)                                           \
  REGISTER_KERNEL_BUILDER(Name("PicassoPackedSparseToDense")  \
                              .Device(tensorflow::DEVICE_CPU) \
                              .TypeConstraint<T>("T"),        \
                          PackedSparseToDenseOp<T>)
REGISTER(tstring);
REGISTER(int32_t);
REGISTER(int64_t);
REGISTER(float);
REGISTER(double);
#undef REGISTER

}  // namespace picasso
