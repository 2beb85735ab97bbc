// Programs over the rows of a matrix: elementwise operations, and sums of rows,
// for many matrices at once. As in program.h, every instruction is what one
// TensorFlow op does, rounding included.
#ifndef PICASSO_TF_KERNELS_CORE_ROW_PROGRAM_H_
#define PICASSO_TF_KERNELS_CORE_ROW_PROGRAM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/common.h"
#include "kernels/core/program.h"

namespace picasso {

enum class RowCode {
  kCopy,
  kSquare,
  kNeg,
  kSqrt,
  kSqrtGrad,  // b * 0.5 / a, as TensorFlow orders it
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMaximum,
  kMinimum,
  kGreater,  // comparisons give 1 and 0
  kGreaterEqual,
  kLess,
  kLessEqual,
  kSelect,  // a != 0 ? b : c
  kSum,     // of each row: a column
};

struct RowInstruction {
  RowCode op;
  bool matrix = false;  // the result is [rows, dim]; else a column [rows, 1]
  Operand args[3];      // values, tensors and literals
};

struct RowProgram {
  std::vector<RowInstruction> code;
  int tensors = 0;  // what a member has to bring

  // Reads lines such as "mul m %0 t1": an instruction, m or c for its result,
  // and operands; %i is the result of line i, ti a tensor, #0 and #1 numbers.
  // Returns "", or what is wrong.
  std::string Parse(const std::vector<std::string>& lines);
};

// A tensor that is broadcast to [rows, dim]: element (r, j) is
// data[r * row_step + j * column_step].
template <typename T>
struct RowOperand {
  const T* data = nullptr;
  int64_t row_step = 0;
  int64_t column_step = 0;
};

template <typename T>
struct RowProgramMember {
  int64_t rows = 0;
  int64_t dim = 0;                     // at least 1
  std::vector<RowOperand<T>> tensors;  // [program.tensors]
  std::vector<T*> results;             // [results]: [rows, dim] or [rows]
};

// Runs the program for all members; `results` are the lines whose values are
// written to a member's results. These may not overlap with its tensors. No bit
// depends on the number of threads.
template <typename T>
void RunRowProgram(const RowProgram& program, const std::vector<int>& results,
                   const std::vector<RowProgramMember<T>>& members,
                   const ParallelFor& parallel_for);

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_ROW_PROGRAM_H_
