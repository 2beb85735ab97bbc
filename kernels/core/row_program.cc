#include "kernels/core/row_program.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <type_traits>

#include "kernels/core/spread.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace picasso {
namespace {

struct Known {
  RowCode op;
  int operands;
};

const std::map<std::string, Known>& Instructions() {
  static const auto* known = new std::map<std::string, Known>{
      {"copy", {RowCode::kCopy, 1}},
      {"square", {RowCode::kSquare, 1}},
      {"neg", {RowCode::kNeg, 1}},
      {"sqrt", {RowCode::kSqrt, 1}},
      {"sqrt_grad", {RowCode::kSqrtGrad, 2}},
      {"add", {RowCode::kAdd, 2}},
      {"sub", {RowCode::kSub, 2}},
      {"mul", {RowCode::kMul, 2}},
      {"div", {RowCode::kDiv, 2}},
      {"maximum", {RowCode::kMaximum, 2}},
      {"minimum", {RowCode::kMinimum, 2}},
      {"greater", {RowCode::kGreater, 2}},
      {"greater_equal", {RowCode::kGreaterEqual, 2}},
      {"less", {RowCode::kLess, 2}},
      {"less_equal", {RowCode::kLessEqual, 2}},
      {"select", {RowCode::kSelect, 3}},
      {"sum", {RowCode::kSum, 1}},
  };
  return *known;
}

constexpr int64_t kBlockElements = 1024;

template <typename T>
class RowInterpreter {
 public:
  RowInterpreter(const RowProgram& program, const std::vector<int>& results,
                 const RowProgramMember<T>& member)
      : program_(program),
        results_(results),
        member_(member),
        dim_(member.dim),
        block_(std::max<int64_t>(1, kBlockElements / member.dim)),
        values_(program.code.size()) {
    int64_t size = dim_ * block_;  // for a sum's operand
    for (const RowInstruction& now : program.code) size += Size(now);
    scratch_.reset(new T[size]);
  }

  void Run(int64_t begin, int64_t end) {
    for (; begin < end; begin += block_) {
      RunBlock(begin, std::min(block_, end - begin));
    }
  }

 private:
  int64_t Width(const RowInstruction& now) const {
    return now.matrix ? dim_ : 1;
  }
  int64_t Size(const RowInstruction& now) const { return Width(now) * block_; }

  void RunBlock(int64_t begin, int64_t rows) {
    T* next = scratch_.get() + dim_ * block_;
    for (size_t i = 0; i < program_.code.size(); ++i) {
      values_[i] = next;
      next += Size(program_.code[i]);
    }
    for (size_t k = 0; k < results_.size(); ++k) {
      const int line = results_[k];
      values_[line] = member_.results[k] + begin * Width(program_.code[line]);
    }
    for (size_t i = 0; i < program_.code.size(); ++i) {
      RunOne(program_.code[i], begin, rows, values_[i]);
    }
  }

  RowOperand<T> Get(const Operand& arg, int64_t begin) const {
    switch (arg.kind) {
      case Kind::kTensor: {
        RowOperand<T> tensor = member_.tensors[arg.index];
        tensor.data += begin * tensor.row_step;
        return tensor;
      }
      case Kind::kValue: {
        const bool matrix = program_.code[arg.index].matrix;
        return {values_[arg.index], matrix ? dim_ : 1, matrix ? 1 : 0};
      }
      case Kind::kLiteral:
        return {&literals_[arg.index], 0, 0};
      default:
        return {};
    }
  }

  void RunOne(const RowInstruction& now, int64_t begin, int64_t rows, T* out) {
    const RowOperand<T> a = Get(now.args[0], begin),
                        b = Get(now.args[1], begin);
    const int64_t width = Width(now);
    const auto each = [&](const auto& f) { Each(a, b, rows, width, out, f); };
    switch (now.op) {
      case RowCode::kCopy:
        return Each(a, a, rows, width, out, [](T x, T) { return x; });
      case RowCode::kSquare:
        return Each(a, a, rows, width, out, [](T x, T) { return x * x; });
      case RowCode::kNeg:
        return Each(a, a, rows, width, out, [](T x, T) { return -x; });
      case RowCode::kSqrt:
        return Each(a, a, rows, width, out,
                    [](T x, T) { return Eigen::numext::sqrt(x); });
      case RowCode::kSqrtGrad:
        return SqrtGrad(a, b, begin * width, rows, width, out);
      case RowCode::kAdd:
        return each([](T x, T y) { return x + y; });
      case RowCode::kSub:
        return each([](T x, T y) { return x - y; });
      case RowCode::kMul:
        return each([](T x, T y) { return x * y; });
      case RowCode::kDiv:
        return each([](T x, T y) { return x / y; });
      case RowCode::kMaximum:
        return each(
            Eigen::internal::scalar_max_op<T, T, Eigen::PropagateNaN>());
      case RowCode::kMinimum:
        return each(
            Eigen::internal::scalar_min_op<T, T, Eigen::PropagateNaN>());
      case RowCode::kGreater:
        return each([](T x, T y) { return T(x > y ? 1 : 0); });
      case RowCode::kGreaterEqual:
        return each([](T x, T y) { return T(x >= y ? 1 : 0); });
      case RowCode::kLess:
        return each([](T x, T y) { return T(x < y ? 1 : 0); });
      case RowCode::kLessEqual:
        return each([](T x, T y) { return T(x <= y ? 1 : 0); });
      case RowCode::kSelect: {
        const RowOperand<T> c = Get(now.args[2], begin);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t j = 0; j < width; ++j) {
            const auto at = [&](const RowOperand<T>& x) {
              return x.data[r * x.row_step + j * x.column_step];
            };
            out[r * width + j] = at(a) != T(0) ? at(b) : at(c);
          }
        }
        return;
      }
      case RowCode::kSum:
        return Sum(a, rows, out);
    }
  }

  // TensorFlow's kernel computes packets, from the first element on, in another
  // order than what is left behind them. `first`: number of the first element.
  void SqrtGrad(const RowOperand<T>& y, const RowOperand<T>& grad,
                int64_t first, int64_t rows, int64_t width, T* out) const {
    using Traits = Eigen::internal::packet_traits<T>;
    constexpr int64_t kPacket =
        Traits::Vectorizable && Traits::HasMul && Traits::HasDiv ? Traits::size
                                                                 : 1;
    const int64_t total = member_.rows * width;
    const int64_t in_packets = kPacket > 1 ? total / kPacket * kPacket : 0;
    const T half = static_cast<T>(0.5);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < width; ++j) {
        const T b = y.data[r * y.row_step + j * y.column_step];
        const T g = grad.data[r * grad.row_step + j * grad.column_step];
        T product;
        if (first + r * width + j < in_packets) {
          const T quotient = half / b;
          product = quotient * g;
        } else {
          const T scaled = half * g;
          product = scaled / b;
        }
        out[r * width + j] = g == T(0) ? T(0) : product;
      }
    }
  }

  // The very expression of TensorFlow's kernel: Eigen decides the order.
  void Sum(const RowOperand<T>& a, int64_t rows, T* out) {
    const T* from = a.data;
    if (a.column_step != 1 || a.row_step != dim_) {
      Each(a, a, rows, dim_, scratch_.get(), [](T x, T) { return x; });
      from = scratch_.get();
    }
    if (dim_ == 1) {
      std::copy_n(from, rows, out);
      return;
    }
    using Matrix = Eigen::TensorMap<Eigen::Tensor<const T, 2, Eigen::RowMajor>>;
    using Vector = Eigen::TensorMap<Eigen::Tensor<T, 1, Eigen::RowMajor>>;
    const Matrix in(from, rows, dim_);
    Vector sums(out, rows);
    const Eigen::IndexList<Eigen::type2index<1>> axis;
    if constexpr (std::is_same_v<T, Eigen::bfloat16>) {
      sums = in.template cast<float>()
                 .reduce(axis, Eigen::internal::SumReducer<float>())
                 .template cast<T>();
    } else {
      sums = in.reduce(axis, Eigen::internal::SumReducer<T>());
    }
  }

  template <typename Function>
  static void Each(const RowOperand<T>& a, const RowOperand<T>& b, int64_t rows,
                   int64_t width, T* out, const Function& f) {
    for (int64_t r = 0; r < rows; ++r, out += width) {
      const T* x = a.data + r * a.row_step;
      const T* y = b.data + r * b.row_step;
      if (width == 1) {
        *out = f(*x, *y);
      } else if (a.column_step == 1 && b.column_step == 1) {
        for (int64_t j = 0; j < width; ++j) out[j] = f(x[j], y[j]);
      } else if (a.column_step == 1) {
        const T all = *y;
        for (int64_t j = 0; j < width; ++j) out[j] = f(x[j], all);
      } else if (b.column_step == 1) {
        const T all = *x;
        for (int64_t j = 0; j < width; ++j) out[j] = f(all, y[j]);
      } else {
        std::fill_n(out, width, f(*x, *y));
      }
    }
  }

  const RowProgram& program_;
  const std::vector<int>& results_;
  const RowProgramMember<T>& member_;
  const int64_t dim_;
  const int64_t block_;  // rows
  std::unique_ptr<T[]> scratch_;
  std::vector<T*> values_;  // by line
  const T literals_[2] = {T(0), T(1)};
};

}  // namespace

std::string RowProgram::Parse(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    std::istringstream words(line);
    std::string name, kind, word;
    words >> name >> kind;
    const auto known = Instructions().find(name);
    if (known == Instructions().end() || (kind != "m" && kind != "c")) {
      return "Unknown instruction '" + line + "'.";
    }
    RowInstruction now;
    now.op = known->second.op;
    now.matrix = kind == "m";
    int count = 0;
    for (; words >> word; ++count) {
      int index = -1;
      std::istringstream(word.substr(1)) >> index;
      Kind from = Kind::kNone;
      if (word[0] == 't' && index >= 0) {
        from = Kind::kTensor;
        tensors = std::max(tensors, index + 1);
      } else if (word[0] == '%' && index >= 0 &&
                 index < static_cast<int>(code.size()) &&
                 (now.matrix || now.op == RowCode::kSum ||
                  !code[index].matrix)) {
        from = Kind::kValue;
      } else if (word[0] == '#' && (index == 0 || index == 1)) {
        from = Kind::kLiteral;
      }
      if (from == Kind::kNone || count >= 3) {
        return "Bad operand '" + word + "' in '" + line + "'.";
      }
      now.args[count] = {from, index};
    }
    if (count != known->second.operands ||
        (now.op == RowCode::kSum && now.matrix)) {
      return "Bad operands in '" + line + "'.";
    }
    code.push_back(now);
  }
  return tensors > 0 ? "" : "The program reads no tensor.";
}

template <typename T>
void RunRowProgram(const RowProgram& program, const std::vector<int>& results,
                   const std::vector<RowProgramMember<T>>& members,
                   const ParallelFor& parallel_for) {
  std::vector<int64_t> rows;
  int64_t elements = 0, total = 0;
  for (const RowProgramMember<T>& member : members) {
    rows.push_back(member.rows);
    total += member.rows;
    elements += member.rows * member.dim;
  }
  if (total == 0) return;
  const int64_t lines = program.code.size();
  Spread(rows, (elements / total + 8) * lines / 2, parallel_for,
         [&](int m, int64_t begin, int64_t end) {
           RowInterpreter<T>(program, results, members[m]).Run(begin, end);
         });
}

#define INSTANTIATE(T)                                                       \
  template void RunRowProgram<T>(const RowProgram&, const std::vector<int>&, \
                                 const std::vector<RowProgramMember<T>>&,    \
                                 const ParallelFor&)
INSTANTIATE(float);
INSTANTIATE(double);
INSTANTIATE(Eigen::half);
INSTANTIATE(Eigen::bfloat16);
#undef INSTANTIATE

}  // namespace picasso
