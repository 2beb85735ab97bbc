// Straight-line programs of elementwise operations, interpreted over blocks:
// what an optimizer does to one variable and its slots, for many variables at
// once.
//
// Every instruction is what one TensorFlow op does, rounding included, and
// takes that op's Eigen functor: packets from the start of the tensor on,
// scalars for the rest, since the two may give different bits. Blocks are
// therefore multiples of the packet.
#ifndef PICASSO_TF_KERNELS_CORE_PROGRAM_H_
#define PICASSO_TF_KERNELS_CORE_PROGRAM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/common.h"

namespace picasso {

enum class OpCode {
  // Values of T.
  kRead,  // variable a, as it is at this point
  kSquare,
  kSqrt,
  kRsqrt,
  kNeg,
  kAbs,
  kSign,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kDivNoNan,
  kMaximum,
  kMinimum,
  kPow,
  kSquaredDifference,
  kGreater,  // comparisons give 1 and 0
  kGreaterEqual,
  kLess,
  kLessEqual,
  kSelect,  // a != 0 ? b : c
  // No value: variable a becomes b, a + b, a - b.
  kAssign,
  kAssignAdd,
  kAssignSub,
  // int64 scalars.
  kReadCount,  // counter a
  kAddCount,
  kCastCount,  // to T
};

// What an operand refers to. A value is the result of an earlier instruction.
enum class Kind : uint8_t {
  kNone,
  kValue,
  kTensor,
  kVariable,
  kCount,
  kInteger,
  kLiteral,  // the number `index`
};

struct Operand {
  Kind kind = Kind::kNone;
  int index = 0;
};

struct Instruction {
  OpCode op;
  Operand args[3];
  int slot = -1;  // scratch block that takes the result; filled in by Parse
  bool copied = false;  // kRead: the variable changes while the value is needed
};

struct Program {
  std::vector<Instruction> code;
  int variables = 0;  // what a member has to bring
  int tensors = 0;
  int counts = 0;                    // int64 variables with one element
  int integers = 0;                  // int64 scalars
  int slots = 0;                     // scratch blocks
  std::vector<bool> written;         // [variables]
  std::vector<bool> read_first;      // [variables]: read before it is updated
  std::vector<bool> assigned_first;  // [variables]: overwritten before any read

  // Reads lines such as "mul %0 t1", "assign_sub v0 %3": an instruction and its
  // operands; %i is the result of line i, t tensors, v variables, c counters, n
  // int64 scalars and #0, #1, #2 numbers. Returns "", or what is wrong.
  std::string Parse(const std::vector<std::string>& lines);
};

template <typename T>
struct ProgramMember {
  T* const* variables = nullptr;  // [variables]
  const bool* variable_is_scalar = nullptr;
  const T* const* tensors = nullptr;  // [tensors]
  const bool* tensor_is_scalar = nullptr;
  const bool* tensor_is_copied = nullptr;  // it shares memory with a variable
  const int64_t* counts = nullptr;         // [counts]
  const int64_t* integers = nullptr;       // [integers]
  int64_t size = 0;                        // elements of all that is not scalar
};

// Runs the program for all members. Members that share memory that one of them
// writes must be passed with `ordered`, which runs them one after the other.
// The result does not depend on the number of threads.
template <typename T>
void RunProgram(const Program& program, const ProgramMember<T>* members,
                int64_t count, bool ordered, const ParallelFor& parallel_for);

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_PROGRAM_H_
