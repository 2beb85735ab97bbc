#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace picasso {

// An output of a packed op under the name of the node that it replaces.
// TensorFlow's optimizers sort the inputs of AddN by their names, and with more
// than two inputs the order decides the bits of the sum. (An Identity would be
// taken away before they sort.) The passes that run after the optimizers remove
// it.
REGISTER_OP("PicassoResult")
    .Input("input: T")
    .Output("output: T")
    .Attr("T: type")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

class ResultOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* ctx) override {
    ctx->set_output(0, ctx->input(0));
  }

  bool IsExpensive() override { return false; }
};

REGISTER_KERNEL_BUILDER(Name("PicassoResult").Device(tensorflow::DEVICE_CPU),
                        ResultOp);

}  // namespace picasso
