#include <string>
#include <vector>

#include "kernels/ops/packed_kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace picasso {

using tensorflow::DataType;
using tensorflow::DtypeAndPartialTensorShape;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::PartialTensorShape;
using tensorflow::Status;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeAndType;
using tensorflow::shape_inference::ShapeHandle;
namespace errors = tensorflow::errors;

// What N VarHandleOps give: the handle of the variable shared_names[i] in
// containers[i] is output i. TensorFlow schedules each VarHandleOp anew in
// every step.
//
// Attributes, lists with one entry per variable:
//   containers, shared_names, dtypes, shapes: those of the VarHandleOp.
//   pack: the key of the execution counters.
// No gradient: handles have none. InvalidArgument if a list has another length.
REGISTER_OP("PicassoVarHandles")
    .Output("handles: N * resource")
    .Attr("N: int >= 1")
    .Attr("containers: list(string)")
    .Attr("shared_names: list(string)")
    .Attr("dtypes: list(type)")
    .Attr("shapes: list(shape)")
    .Attr("pack: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> Status {
      std::vector<DataType> dtypes;
      std::vector<PartialTensorShape> shapes;
      TF_RETURN_IF_ERROR(c->GetAttr("dtypes", &dtypes));
      TF_RETURN_IF_ERROR(c->GetAttr("shapes", &shapes));
      const size_t count = c->num_outputs();
      if (dtypes.size() != count || shapes.size() != count) {
        return errors::InvalidArgument("There is not one type and shape per ",
                                       "variable.");
      }
      for (size_t i = 0; i < count; ++i) {
        ShapeHandle shape;
        TF_RETURN_IF_ERROR(
            c->MakeShapeFromPartialTensorShape(shapes[i], &shape));
        c->set_output(i, c->Scalar());
        c->set_output_handle_shapes_and_types(
            i, std::vector<ShapeAndType>{{shape, dtypes[i]}});
      }
      return tensorflow::OkStatus();
    });

class VarHandlesOp : public PackedKernel {
 public:
  explicit VarHandlesOp(OpKernelConstruction* ctx) : PackedKernel(ctx) {
    std::vector<std::string> containers, names;
    std::vector<DataType> dtypes;
    std::vector<PartialTensorShape> shapes;
    const int count = members();
    OP_REQUIRES_OK(ctx, GetList(ctx, "containers", count, &containers));
    OP_REQUIRES_OK(ctx, GetList(ctx, "shared_names", count, &names));
    OP_REQUIRES_OK(ctx, GetList(ctx, "dtypes", count, &dtypes));
    OP_REQUIRES_OK(ctx, GetList(ctx, "shapes", count, &shapes));
    for (int i = 0; i < count; ++i) {
      handles_.emplace_back(tensorflow::DT_RESOURCE, TensorShape({}));
      handles_.back().scalar<tensorflow::ResourceHandle>()() =
          tensorflow::MakeResourceHandle<tensorflow::Var>(
              ctx, containers[i], names[i],
              {DtypeAndPartialTensorShape{dtypes[i], shapes[i]}});
    }
  }

  bool IsExpensive() override { return false; }

 protected:
  Status Run(OpKernelContext* ctx) const override {
    for (int i = 0; i < members(); ++i) ctx->set_output(i, handles_[i]);
    return tensorflow::OkStatus();
  }

 private:
  std::vector<Tensor> handles_;
};

REGISTER_KERNEL_BUILDER(
    Name("PicassoVarHandles").Device(tensorflow::DEVICE_CPU), VarHandlesOp);

}  // namespace picasso
