#include "kernels/core/program.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace picasso {
namespace {

struct OpInfo {
  const char* name;
  OpCode op;
  const char* args;  // kinds: x value or tensor, v variable, c counter,
                     // i int64 value or scalar
};

constexpr OpInfo kOps[] = {
    {"read", OpCode::kRead, "v"},
    {"square", OpCode::kSquare, "x"},
    {"sqrt", OpCode::kSqrt, "x"},
    {"rsqrt", OpCode::kRsqrt, "x"},
    {"neg", OpCode::kNeg, "x"},
    {"abs", OpCode::kAbs, "x"},
    {"sign", OpCode::kSign, "x"},
    {"add", OpCode::kAdd, "xx"},
    {"sub", OpCode::kSub, "xx"},
    {"mul", OpCode::kMul, "xx"},
    {"div", OpCode::kDiv, "xx"},
    {"div_no_nan", OpCode::kDivNoNan, "xx"},
    {"maximum", OpCode::kMaximum, "xx"},
    {"minimum", OpCode::kMinimum, "xx"},
    {"pow", OpCode::kPow, "xx"},
    {"squared_difference", OpCode::kSquaredDifference, "xx"},
    {"greater", OpCode::kGreater, "xx"},
    {"greater_equal", OpCode::kGreaterEqual, "xx"},
    {"less", OpCode::kLess, "xx"},
    {"less_equal", OpCode::kLessEqual, "xx"},
    {"select", OpCode::kSelect, "xxx"},
    {"assign", OpCode::kAssign, "vx"},
    {"assign_add", OpCode::kAssignAdd, "vx"},
    {"assign_sub", OpCode::kAssignSub, "vx"},
    {"read_count", OpCode::kReadCount, "c"},
    {"add_count", OpCode::kAddCount, "ii"},
    {"cast_count", OpCode::kCastCount, "i"},
};

bool Writes(OpCode op) {
  return op == OpCode::kAssign || op == OpCode::kAssignAdd ||
         op == OpCode::kAssignSub;
}

bool IsCount(OpCode op) {
  return op == OpCode::kReadCount || op == OpCode::kAddCount;
}

Kind KindOf(char mark) {
  switch (mark) {
    case '%':
      return Kind::kValue;
    case 't':
      return Kind::kTensor;
    case 'v':
      return Kind::kVariable;
    case 'c':
      return Kind::kCount;
    case 'n':
      return Kind::kInteger;
    case '#':
      return Kind::kLiteral;
    default:
      return Kind::kNone;
  }
}

}  // namespace

std::string Program::Parse(const std::vector<std::string>& lines) {
  *this = Program();
  for (const std::string& line : lines) {
    const auto wrong = [&](const std::string& what) {
      return "Line " + std::to_string(code.size()) + " of the program, '" +
             line + "': " + what + ".";
    };
    std::istringstream words(line);
    std::string name, word;
    words >> name;
    const OpInfo* info =
        std::find_if(std::begin(kOps), std::end(kOps),
                     [&](const OpInfo& known) { return name == known.name; });
    if (info == std::end(kOps)) return wrong("no such instruction");
    Instruction next;
    next.op = info->op;
    int args = 0;
    for (const char* expected = info->args; *expected != 0; ++expected) {
      if (!(words >> word) || word.size() < 2) return wrong("too few operands");
      Operand& arg = next.args[args++];
      arg.kind = KindOf(word[0]);
      char* end = nullptr;
      arg.index = std::strtol(word.c_str() + 1, &end, 10);
      bool good = *end == 0 && arg.index >= 0 && arg.index < (1 << 20);
      const bool value = arg.kind == Kind::kValue;
      if (good && value) {
        good = arg.index < static_cast<int>(code.size()) &&
               !Writes(code[arg.index].op) &&
               IsCount(code[arg.index].op) == (*expected == 'i');
      }
      switch (*expected) {
        case 'x':
          good = good && (value || arg.kind == Kind::kTensor ||
                          (arg.kind == Kind::kLiteral && arg.index <= 2));
          break;
        case 'i':
          good = good && (value || arg.kind == Kind::kInteger);
          break;
        case 'v':
          good = good && arg.kind == Kind::kVariable;
          break;
        default:
          good = good && arg.kind == Kind::kCount;
      }
      if (!good) return wrong("bad operand '" + word + "'");
      int* used = arg.kind == Kind::kTensor     ? &tensors
                  : arg.kind == Kind::kVariable ? &variables
                  : arg.kind == Kind::kCount    ? &counts
                  : arg.kind == Kind::kInteger  ? &integers
                                                : nullptr;
      if (used != nullptr) *used = std::max(*used, arg.index + 1);
    }
    if (words >> word) return wrong("too many operands");
    code.push_back(next);
  }
  if (code.empty()) return "The program is empty.";

  const int count = code.size();
  written.assign(variables, false);
  read_first.assign(variables, false);
  assigned_first.assign(variables, false);
  std::vector<bool> seen(variables, false);
  std::vector<int> last_use(count, -1);
  for (int i = 0; i < count; ++i) {
    for (const Operand& arg : code[i].args) {
      if (arg.kind == Kind::kValue) last_use[arg.index] = i;
      if (arg.kind != Kind::kVariable) continue;
      if (Writes(code[i].op)) written[arg.index] = true;
      if (!seen[arg.index]) {
        read_first[arg.index] = code[i].op == OpCode::kRead;
        assigned_first[arg.index] = code[i].op == OpCode::kAssign;
      }
      seen[arg.index] = true;
    }
  }
  // A block per value that is still needed, as registers are given out.
  std::vector<int> free_slots;
  for (int i = 0; i < count; ++i) {
    Instruction& now = code[i];
    if (now.op == OpCode::kRead) {
      for (int later = i + 1; later < last_use[i]; ++later) {
        if (Writes(code[later].op) &&
            code[later].args[0].index == now.args[0].index) {
          now.copied = true;
        }
      }
    }
    // The result may lie where an operand ends: operations are elementwise.
    for (const Operand& arg : now.args) {
      if (arg.kind != Kind::kValue || last_use[arg.index] != i) continue;
      const int slot = code[arg.index].slot;
      if (slot >= 0 && std::find(free_slots.begin(), free_slots.end(), slot) ==
                           free_slots.end()) {
        free_slots.push_back(slot);
      }
    }
    if (Writes(now.op) || IsCount(now.op)) continue;
    if (now.op == OpCode::kRead && !now.copied) continue;
    if (free_slots.empty()) free_slots.push_back(slots++);
    now.slot = free_slots.back();
    free_slots.pop_back();
    if (last_use[i] < 0) free_slots.push_back(now.slot);
  }
  return "";
}

}  // namespace picasso
