// The interpreter of programs; included by one file per element type, since
// Eigen's packets take long to compile.
#ifndef PICASSO_TF_KERNELS_CORE_PROGRAM_IMPL_H_
#define PICASSO_TF_KERNELS_CORE_PROGRAM_IMPL_H_

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/core/program.h"
#include "kernels/core/rules.h"

namespace picasso {

// Elements that an instruction handles at once: a few blocks fit into L1. A
// multiple of every packet.
constexpr int64_t kBlock = 1024;

template <typename T>
struct RsqrtOp {
  T operator()(const T& x) const { return Eigen::numext::rsqrt(x); }
  template <typename P>
  P packetOp(const P& x) const {
    return Rsqrt<T, P>(x);
  }
};

}  // namespace picasso

namespace Eigen::internal {
template <typename T>
struct functor_traits<picasso::RsqrtOp<T>>
    : functor_traits<scalar_rsqrt_op<T>> {};
}  // namespace Eigen::internal

namespace picasso {

// An operand over one block: a stretch of elements, or one for all of them.
template <typename T>
struct Block {
  const T* data = nullptr;
  bool scalar = false;
};

template <typename T>
class Interpreter {
 public:
  Interpreter(const Program& program, const ProgramMember<T>& member)
      : program_(program),
        member_(member),
        one_(program.code.size(), member.size == 1),
        scalars_(program.code.size()),
        counts_(program.code.size()) {
    if (member.size == 1) return;
    // What is computed from scalars alone is computed once.
    for (size_t i = 0; i < program.code.size(); ++i) {
      const Instruction& now = program.code[i];
      switch (now.op) {
        case OpCode::kReadCount:
        case OpCode::kAddCount:
        case OpCode::kCastCount:
          one_[i] = true;
          break;
        case OpCode::kRead:
          one_[i] = member.variable_is_scalar[now.args[0].index];
          break;
        case OpCode::kAssign:
        case OpCode::kAssignAdd:
        case OpCode::kAssignSub:
          one_[i] = false;
          break;
        default:
          one_[i] = true;
          for (const Operand& arg : now.args) {
            one_[i] = one_[i] && (arg.kind == Kind::kNone || IsOne(arg));
          }
      }
      if (one_[i]) Run(now, i, 0, 1, nullptr, nullptr);
    }
  }

  // Elements [begin, end) of all that is not scalar. `scratch` has room for a
  // block per slot and per tensor.
  void RunBlock(int64_t begin, int64_t end, T* scratch) {
    T* const copies = scratch + program_.slots * kBlock;
    for (int t = 0; t < program_.tensors; ++t) {
      if (!member_.tensor_is_copied[t] || member_.tensor_is_scalar[t]) continue;
      std::memcpy(static_cast<void*>(copies + t * kBlock),
                  member_.tensors[t] + begin, (end - begin) * sizeof(T));
    }
    for (size_t i = 0; i < program_.code.size(); ++i) {
      if (one_[i] && member_.size != 1) continue;
      Run(program_.code[i], i, begin, end - begin, scratch, copies);
    }
  }

 private:
  bool IsOne(const Operand& arg) const {
    if (arg.kind == Kind::kLiteral) return true;
    return arg.kind == Kind::kTensor ? member_.tensor_is_scalar[arg.index]
                                     : one_[arg.index];
  }

  int64_t CountOf(const Operand& arg) const {
    return arg.kind == Kind::kInteger ? member_.integers[arg.index]
                                      : counts_[arg.index];
  }

  Block<T> Get(const Operand& arg, int64_t begin, T* scratch, T* copies) const {
    if (arg.kind == Kind::kLiteral) return {&literals_[arg.index], true};
    if (arg.kind == Kind::kTensor) {
      const int t = arg.index;
      if (member_.tensor_is_scalar[t]) return {member_.tensors[t], true};
      if (copies != nullptr && member_.tensor_is_copied[t]) {
        return {copies + t * kBlock, false};
      }
      return {member_.tensors[t] + begin, false};
    }
    if (one_[arg.index]) return {&scalars_[arg.index], true};
    const Instruction& from = program_.code[arg.index];
    if (from.op == OpCode::kRead && !from.copied) {
      return {member_.variables[from.args[0].index] + begin, false};
    }
    return {scratch + from.slot * kBlock, false};
  }

  void Run(const Instruction& now, int i, int64_t begin, int64_t size,
           T* scratch, T* copies) {
    switch (now.op) {
      case OpCode::kReadCount:
        counts_[i] = member_.counts[now.args[0].index];
        return;
      case OpCode::kAddCount:
        counts_[i] = CountOf(now.args[0]) + CountOf(now.args[1]);
        return;
      case OpCode::kCastCount:
        scalars_[i] = static_cast<T>(CountOf(now.args[0]));
        return;
      default:
        break;
    }
    T* out = one_[i] ? &scalars_[i]
                     : (now.slot < 0 ? nullptr : scratch + now.slot * kBlock);
    if (now.op == OpCode::kRead) {
      if (one_[i] || now.copied) {
        std::memcpy(static_cast<void*>(out),
                    member_.variables[now.args[0].index] + begin,
                    size * sizeof(T));
      }
      return;
    }
    Block<T> in[3];
    for (int k = 0; k < 3; ++k) {
      const Kind kind = now.args[k].kind;
      if (kind == Kind::kValue || kind == Kind::kTensor ||
          kind == Kind::kLiteral) {
        in[k] = Get(now.args[k], begin, scratch, copies);
      }
    }
    using namespace Eigen::internal;
    switch (now.op) {
      case OpCode::kSquare:
        return Unary<scalar_square_op<T>>(in[0].data, out, size);
      case OpCode::kSqrt:
        return Unary<scalar_sqrt_op<T>>(in[0].data, out, size);
      case OpCode::kRsqrt:
        return Unary<RsqrtOp<T>>(in[0].data, out, size);
      case OpCode::kNeg:
        return Unary<scalar_opposite_op<T>>(in[0].data, out, size);
      case OpCode::kAbs:
        return Unary<scalar_abs_op<T>>(in[0].data, out, size);
      case OpCode::kSign:
        return Unary<scalar_sign_op<T>>(in[0].data, out, size);
      case OpCode::kAdd:
        return Binary<scalar_sum_op<T>>(in[0], in[1], out, size);
      case OpCode::kSub:
        return Binary<scalar_difference_op<T>>(in[0], in[1], out, size);
      case OpCode::kMul:
        return Binary<scalar_product_op<T>>(in[0], in[1], out, size);
      case OpCode::kDiv:
        return Binary<scalar_quotient_op<T>>(in[0], in[1], out, size);
      case OpCode::kMaximum:
        return Binary<scalar_max_op<T, T, Eigen::PropagateNaN>>(in[0], in[1],
                                                                out, size);
      case OpCode::kMinimum:
        return Binary<scalar_min_op<T, T, Eigen::PropagateNaN>>(in[0], in[1],
                                                                out, size);
      case OpCode::kPow:
        return Binary<scalar_pow_op<T, T>>(in[0], in[1], out, size);
      case OpCode::kSquaredDifference:
        Binary<scalar_difference_op<T>>(in[0], in[1], out, size);
        return Unary<scalar_square_op<T>>(out, out, size);
      case OpCode::kDivNoNan:
        return Each(in[0], in[1], out, size, [](T a, T b) {
          return b == T(0) ? T(0) : scalar_quotient_op<T>()(a, b);
        });
      case OpCode::kGreater:
        return Each(in[0], in[1], out, size,
                    [](T a, T b) { return T(a > b ? 1 : 0); });
      case OpCode::kGreaterEqual:
        return Each(in[0], in[1], out, size,
                    [](T a, T b) { return T(a >= b ? 1 : 0); });
      case OpCode::kLess:
        return Each(in[0], in[1], out, size,
                    [](T a, T b) { return T(a < b ? 1 : 0); });
      case OpCode::kLessEqual:
        return Each(in[0], in[1], out, size,
                    [](T a, T b) { return T(a <= b ? 1 : 0); });
      case OpCode::kSelect:
        for (int64_t k = 0; k < size; ++k) {
          const T mask = in[0].data[in[0].scalar ? 0 : k];
          const Block<T>& chosen = mask != T(0) ? in[1] : in[2];
          out[k] = chosen.data[chosen.scalar ? 0 : k];
        }
        return;
      default:
        break;
    }
    // An update in place. Its operand is in in[1].
    T* const var = member_.variables[now.args[0].index] + begin;
    const Block<T> old = {var, false};
    if (now.op == OpCode::kAssignAdd) {
      Binary<scalar_sum_op<T>>(old, in[1], var, size);
    } else if (now.op == OpCode::kAssignSub) {
      Binary<scalar_difference_op<T>>(old, in[1], var, size);
    } else if (in[1].scalar) {
      std::fill_n(var, size, *in[1].data);
    } else {
      std::memmove(static_cast<void*>(var), in[1].data, size * sizeof(T));
    }
  }

  template <typename Functor>
  static constexpr bool kPackets =
      Eigen::internal::functor_traits<Functor>::PacketAccess &&
      Eigen::internal::packet_traits<T>::Vectorizable;

  template <typename Functor>
  static void Unary(const T* in, T* out, int64_t size) {
    using P = typename Eigen::internal::packet_traits<T>::type;
    const Functor f;
    int64_t k = 0;
    if constexpr (kPackets<Functor>) {
      constexpr int64_t kSize = Eigen::internal::packet_traits<T>::size;
      for (; k + kSize <= size; k += kSize) {
        packet::pstoreu(out + k, f.packetOp(packet::ploadu<P>(in + k)));
      }
    }
    for (; k < size; ++k) out[k] = f(in[k]);
  }

  template <typename Functor>
  static void Binary(const Block<T>& a, const Block<T>& b, T* out,
                     int64_t size) {
    using P = typename Eigen::internal::packet_traits<T>::type;
    const Functor f;
    int64_t k = 0;
    if constexpr (kPackets<Functor>) {
      constexpr int64_t kSize = Eigen::internal::packet_traits<T>::size;
      if (size >= kSize) {
        if (a.scalar) {
          const P all = packet::pset1<P>(*a.data);
          for (; k + kSize <= size; k += kSize) {
            const P y = b.scalar ? packet::pset1<P>(*b.data)
                                 : packet::ploadu<P>(b.data + k);
            packet::pstoreu(out + k, f.packetOp(all, y));
          }
        } else if (b.scalar) {
          const P all = packet::pset1<P>(*b.data);
          for (; k + kSize <= size; k += kSize) {
            packet::pstoreu(out + k,
                            f.packetOp(packet::ploadu<P>(a.data + k), all));
          }
        } else {
          for (; k + kSize <= size; k += kSize) {
            packet::pstoreu(out + k, f.packetOp(packet::ploadu<P>(a.data + k),
                                                packet::ploadu<P>(b.data + k)));
          }
        }
      }
    }
    const int64_t step_a = a.scalar ? 0 : 1, step_b = b.scalar ? 0 : 1;
    for (; k < size; ++k) out[k] = f(a.data[k * step_a], b.data[k * step_b]);
  }

  // Where no packet gives other bits.
  template <typename Function>
  static void Each(const Block<T>& a, const Block<T>& b, T* out, int64_t size,
                   Function f) {
    const int64_t step_a = a.scalar ? 0 : 1, step_b = b.scalar ? 0 : 1;
    for (int64_t k = 0; k < size; ++k) {
      out[k] = f(a.data[k * step_a], b.data[k * step_b]);
    }
  }

  const Program& program_;
  const ProgramMember<T>& member_;
  std::vector<char> one_;  // per instruction: its result is one element
  std::vector<T> scalars_;
  const T literals_[3] = {T(0), T(1), T(2)};
  std::vector<int64_t> counts_;
};

template <typename T>
void RunProgram(const Program& program, const ProgramMember<T>* members,
                int64_t count, bool ordered, const ParallelFor& parallel_for) {
  // Block b belongs to the member whose first block is the last one up to b.
  std::vector<int64_t> first(count + 1, 0);
  int64_t elements = 0;
  for (int64_t m = 0; m < count; ++m) {
    first[m + 1] = first[m] + (members[m].size + kBlock - 1) / kBlock;
    elements += members[m].size;
  }
  const int64_t total = first[count];
  if (total == 0) return;
  const auto run = [&](int64_t begin, int64_t end) {
    const std::unique_ptr<T[]> scratch(
        new T[(program.slots + program.tensors) * kBlock]);
    int64_t m =
        std::upper_bound(first.begin(), first.end(), begin) - first.begin() - 1;
    for (int64_t b = begin; b < end; ++m) {
      const int64_t last = std::min(end, first[m + 1]);
      if (b >= last) continue;
      Interpreter<T> interpreter(program, members[m]);
      for (; b < last; ++b) {
        const int64_t from = (b - first[m]) * kBlock;
        interpreter.RunBlock(from, std::min(from + kBlock, members[m].size),
                             scratch.get());
      }
    }
  };
  if (ordered) {
    run(0, total);
    return;
  }
  const int64_t instructions = program.code.size();
  parallel_for(total, (elements / total + 64) * instructions, run);
}

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_PROGRAM_IMPL_H_
