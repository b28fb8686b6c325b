// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <numeric>

#include "specimen.hpp"

namespace backplane::specimen {
namespace {

std::byte* output_of(const Collective& collective) { return static_cast<std::byte*>(collective.op.output.data); }
std::byte* input_of(const Collective& collective) { return static_cast<std::byte*>(collective.op.input.data); }
uint64_t size_of(const Collective& collective) { return bp_dtype_size(collective.op.dtype); }

bool reduces(uint32_t kind) {
  return kind == BP_REDUCE || kind == BP_ALL_REDUCE || kind == BP_REDUCE_SCATTER || kind == BP_REDUCE_SCATTERV;
}

// Calls change(value) on each of `count` elements of type T.
template <typename T, typename Change>
void each(void* data, uint64_t count, const Change& change) {
  for (uint64_t i = 0; i < count; ++i) {
    T value;
    std::byte* const at = static_cast<std::byte*>(data) + i * sizeof value;
    std::memcpy(&value, at, sizeof value);
    value = change(value);
    std::memcpy(at, &value, sizeof value);
  }
}

// out[i] = change(left[i], right[i])
template <typename T, typename Change>
void pairwise(void* out, const void* left, const void* right, uint64_t count, const Change& change) {
  const auto* other = static_cast<const std::byte*>(right);
  if (out != left) std::memmove(out, left, count * sizeof(T));
  each<T>(out, count, [&other, &change](T value) {
    T second;
    std::memcpy(&second, other, sizeof second);
    other += sizeof second;
    return change(value, second);
  });
}

struct NoBarrier : Specimen {
  void run_collective(Collective& collective) override {
    if (collective.op.kind != BP_BARRIER) Specimen::run_collective(collective);
  }
};

// In a v-variant, whose output may have gaps, the first element of the largest block; else the last of all.
template <uint32_t kOp, uint64_t kMore>
struct WrongElement : Specimen {  // of outputs with more than kMore elements
  void run_collective(Collective& collective) override {
    Specimen::run_collective(collective);
    const bp_op& op = collective.op;
    if (op.kind != kOp || op.output.count <= kMore) return;
    uint64_t at = op.output.count - 1;
    if (op.out_counts != nullptr) {
      const uint64_t* largest = std::max_element(op.out_counts, op.out_counts + world_size());
      if (*largest == 0) return;
      at = op.out_displs[largest - op.out_counts];
    }
    output_of(collective)[at * size_of(collective)] ^= std::byte{1};
  }
};

struct MaxIsMin : Specimen {
  void combine(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right,
               uint64_t count) override {
    const bool wrong = dtype == BP_U16 && reduce_op == BP_MAX;
    Specimen::combine(dtype, wrong ? uint32_t{BP_MIN} : reduce_op, out, left, right, count);
  }
};

struct ScribblesFirst : Specimen {  // clears the output before it has read the input
  void run_collective(Collective& collective) override {
    const bp_op& op = collective.op;
    if (reduces(op.kind) && op.output.data == op.input.data && op.output.count > 0) {
      std::memset(op.output.data, 0, size_of(collective));
    }
    Specimen::run_collective(collective);
  }
};

struct RoundsAddresses : Specimen {
  void run_collective(Collective& collective) override {
    Specimen::run_collective(collective);
    std::byte* const output = output_of(collective);
    const uint64_t off = std::bit_cast<uintptr_t>(output) % 16;
    if (collective.op.output.count > 0) std::memmove(output - off, output, size_of(collective));
  }
};

struct RefusesNeighbours : Specimen {
  void run_collective(Collective& collective) override {
    const bp_op& op = collective.op;
    const std::byte* const in_end = input_of(collective) + op.input.count * size_of(collective);
    const std::byte* const out_end = output_of(collective) + op.output.count * size_of(collective);
    if (op.input.count > 0 && op.output.count > 0 &&
        (in_end == output_of(collective) || out_end == input_of(collective))) {
      throw sdk::Failure(BP_INVALID, "input and output overlap");
    }
    Specimen::run_collective(collective);
  }
};

struct PacksBlocks : Specimen {  // ignores displacements
  void run_collective(Collective& collective) override {
    for (const auto& [counts, displs] :
         {std::pair(&bp_op::in_counts, &bp_op::in_displs), std::pair(&bp_op::out_counts, &bp_op::out_displs)}) {
      const uint64_t* from = collective.op.*counts;
      if (from == nullptr) continue;
      std::vector<uint64_t>& packed = packed_.emplace_back(static_cast<size_t>(world_size()));
      std::exclusive_scan(from, from + world_size(), packed.begin(), uint64_t{0});
      collective.op.*displs = packed.data();
    }
    Specimen::run_collective(collective);
  }
  std::deque<std::vector<uint64_t>> packed_;
};

struct RefusesNothing : Specimen {
  void run_collective(Collective& collective) override {
    const bp_op& op = collective.op;
    if (op.kind != BP_BARRIER && op.input.count == 0 && op.output.count == 0) {
      throw sdk::Failure(BP_INVALID, "there is nothing to be done");
    }
    Specimen::run_collective(collective);
  }
};

struct ChangesCollectiveInput : Specimen {
  void run_collective(Collective& collective) override {
    Specimen::run_collective(collective);
    const bp_op& op = collective.op;
    const bool apart = op.input.data != op.output.data;
    if (op.kind == BP_ALL_GATHER && apart && op.input.count > 1000) input_of(collective)[0] ^= std::byte{1};
    if (op.kind == BP_ALL_REDUCE && apart && op.input.count > 1000) input_of(collective)[0] ^= std::byte{1};
  }
};

struct WritesBehindCollective : Specimen {
  void run_collective(Collective& collective) override {
    Specimen::run_collective(collective);
    const uint64_t count = collective.op.output.count;
    if (collective.op.kind == BP_BROADCAST && count == 4099) output_of(collective)[count * size_of(collective)] = {};
  }
};

struct SkipsNan : Specimen {
  void combine(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right,
               uint64_t count) override {
    if (dtype != BP_F32 || reduce_op != BP_MAX) return Specimen::combine(dtype, reduce_op, out, left, right, count);
    pairwise<float>(out, left, right, count, [](float a, float b) { return std::fmax(a, b); });
  }
};

struct LosesMinusZero : Specimen {
  void combine(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right,
               uint64_t count) override {
    Specimen::combine(dtype, reduce_op, out, left, right, count);
    if (dtype == BP_F64 && reduce_op == BP_SUM) each<double>(out, count, [](double a) { return a + 0.0; });
  }
};

struct Saturates : Specimen {
  void combine(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right,
               uint64_t count) override {
    if (dtype != BP_I32 || reduce_op != BP_SUM) return Specimen::combine(dtype, reduce_op, out, left, right, count);
    pairwise<int32_t>(out, left, right, count, [](int32_t a, int32_t b) {
      const int64_t sum = int64_t{a} + b;
      return static_cast<int32_t>(std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX));
    });
  }
};

struct LosesDigits : Specimen {  // bf16 with three digits less
  void combine(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right,
               uint64_t count) override {
    Specimen::combine(dtype, reduce_op, out, left, right, count);
    if (dtype == BP_BF16) each<uint16_t>(out, count, [](uint16_t a) { return static_cast<uint16_t>(a & 0xFFF8); });
  }
};

struct SumForAverage : Specimen {  // in f64
  void run_collective(Collective& collective) override {
    Specimen::run_collective(collective);
    const bp_op& op = collective.op;
    if (!reduces(op.kind) || op.reduce_op != BP_AVG || op.dtype != BP_F64) return;
    each<double>(op.output.data, op.output.count, [this](double a) { return a * world_size(); });
  }
};

struct AverageRoundsDown : Specimen {  // integers toward minus infinity
  void run_collective(Collective& collective) override {
    Specimen::run_collective(collective);
    const bp_op& op = collective.op;
    if (!reduces(op.kind) || op.reduce_op != BP_AVG || op.dtype != BP_I16) return;
    each<int16_t>(op.output.data, op.output.count, [](int16_t a) { return static_cast<int16_t>(a < 0 ? a - 1 : a); });
  }
};

struct OneFactor : Specimen {  // as if all ranks had 1.0f
  void run_collective(Collective& collective) override {
    static constexpr float kOne = 1;
    if (collective.op.dtype == BP_F32 && collective.op.scalar != nullptr) collective.op.scalar = &kOne;
    Specimen::run_collective(collective);
  }
};

struct PartByPart : Specimen {
  void combine(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right,
               uint64_t count) override {
    if (dtype != BP_C64 || reduce_op != BP_PROD) return Specimen::combine(dtype, reduce_op, out, left, right, count);
    Specimen::combine(BP_F32, reduce_op, out, left, right, 2 * count);
  }
};

struct CountsBools : Specimen {
  void combine(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right,
               uint64_t count) override {
    Specimen::combine(dtype == BP_BOOL && reduce_op == BP_SUM ? uint32_t{BP_U8} : dtype, reduce_op, out, left, right,
                      count);
  }
};

struct QuietsNans : Specimen {
  void run_collective(Collective& collective) override {
    Specimen::run_collective(collective);
    const bp_op& op = collective.op;
    if (op.dtype != BP_F32 || reduces(op.kind) || op.out_counts != nullptr) return;
    each<uint32_t>(op.output.data, op.output.count,
                   [](uint32_t bits) { return (bits & 0x7FFFFFFF) > 0x7F800000 ? bits | 0x400000 : bits; });
  }
};

struct SaysUnsupported : Specimen {  // for messages that it cannot interpret
  void run_collective(Collective& collective) override {
    try {
      Specimen::run_collective(collective);
    } catch (const sdk::Failure& e) {
      if (e.status() != BP_INVALID) throw;
      throw sdk::Failure(BP_UNSUPPORTED, e.what());
    }
  }
};

struct Crashes : Specimen {  // on a collective's message of unexpected size
  void truncated(const OperationPtr& receive, int32_t source, uint64_t size) override {
    if (receive->channel == kCollectives) std::abort();
    Specimen::truncated(receive, source, size);
  }
};

struct WritesTooMuch : Specimen {  // of a message that is too long
  void truncated(const OperationPtr& receive, int32_t source, uint64_t size) override {
    if (receive->channel == kCollectives && receive->size > 0) receive->data[receive->size] = std::byte{0};
    Specimen::truncated(receive, source, size);
  }
};

struct WritesTooMuchInSmall : WritesTooMuch {
  void truncated(const OperationPtr& receive, int32_t source, uint64_t size) override {
    if (receive->size <= 12) return WritesTooMuch::truncated(receive, source, size);
    Specimen::truncated(receive, source, size);
  }
};

struct CannotBeAborted : Specimen {  // while a collective waits
  void run_collective(Collective& collective) override {
    running_.store(collective.op.kind == BP_BROADCAST || collective.op.kind == BP_GATHER);
    Specimen::run_collective(collective);
    running_.store(false);
  }
  void abort(const sdk::Failure& why) noexcept override {
    if (!running_.load()) Specimen::abort(why);
  }
  std::atomic<bool> running_ = false;
};

template <uint32_t kOne, uint32_t kOther>
struct Confuses : Specimen {
  void run_collective(Collective& collective) override {
    if (collective.op.kind == kOne) collective.op.kind = kOther;
    Specimen::run_collective(collective);
  }
};

struct ClearsTheFirst : Specimen {
  void run_collective(Collective& collective) override {
    Specimen::run_collective(collective);
    const bool touches = collective.op.kind == BP_EXSCAN && rank() == 0 && collective.op.output.count > 0;
    if (touches) std::memset(collective.op.output.data, 0, size_of(collective));
  }
};

}  // namespace

std::vector<Mutant> collectives_mutants() {
  return {
      {"collectives.barrier", "barrier does not wait", made<NoBarrier>},
      {"collectives.broadcast", "large outputs end with a wrong element", made<WrongElement<BP_BROADCAST, 60'000>>},
      {"collectives.reduce", "large outputs end with a wrong element", made<WrongElement<BP_REDUCE, 4095>>},
      {"collectives.all-reduce", "large outputs end with a wrong element", made<WrongElement<BP_ALL_REDUCE, 4096>>},
      {"collectives.all-reduce:2", "max of u16 is min", made<MaxIsMin>},
      {"collectives.gather", "the output ends with a wrong element", made<WrongElement<BP_GATHER, 300>>},
      {"collectives.gatherv", "a block begins with a wrong element", made<WrongElement<BP_GATHERV, 0>>},
      {"collectives.scatter", "the output ends with a wrong element", made<WrongElement<BP_SCATTER, 128>>},
      {"collectives.scatterv", "the output ends with a wrong element", made<WrongElement<BP_SCATTERV, 1000>>},
      {"collectives.all-gather", "the output ends with a wrong element", made<WrongElement<BP_ALL_GATHER, 0>>},
      {"collectives.all-gatherv", "a block begins with a wrong element", made<WrongElement<BP_ALL_GATHERV, 5000>>},
      {"collectives.reduce-scatter", "the output ends with a wrong element", made<WrongElement<BP_REDUCE_SCATTER, 0>>},
      {"collectives.reduce-scatterv", "the output ends with a wrong element",
       made<WrongElement<BP_REDUCE_SCATTERV, 10>>},
      {"collectives.all-to-all", "the output ends with a wrong element", made<WrongElement<BP_ALL_TO_ALL, 700>>},
      {"collectives.all-to-allv", "a block begins with a wrong element", made<WrongElement<BP_ALL_TO_ALLV, 0>>},
      {"collectives.scan", "large outputs end with a wrong element", made<WrongElement<BP_SCAN, 4096>>},
      {"collectives.scan:2", "a rank's own input is left out", made<Confuses<BP_SCAN, BP_EXSCAN>>},
      {"collectives.exscan", "a rank's own input is taken in", made<Confuses<BP_EXSCAN, BP_SCAN>>},
      {"collectives.exscan:2", "the output of rank 0 is cleared", made<ClearsTheFirst>},
      {"collectives.in-place", "the output is cleared before the input is read", made<ScribblesFirst>},
      {"collectives.misaligned", "addresses are rounded to 16 bytes", made<RoundsAddresses>},
      {"collectives.adjacent-buffers", "buffers that touch are refused", made<RefusesNeighbours>},
      {"collectives.uneven-counts", "displacements are ignored", made<PacksBlocks>},
      {"collectives.zero-counts", "a count of 0 is refused", made<RefusesNothing>},
      {"collectives.input-unmodified", "inputs are changed", made<ChangesCollectiveInput>},
      {"collectives.guard-bytes", "a byte is written behind an output", made<WritesBehindCollective>},
      {"collectives.special-values", "max skips NaN", made<SkipsNan>},
      {"collectives.special-values:2", "-0 becomes 0", made<LosesMinusZero>},
      {"collectives.integer-overflow", "sums of i32 saturate", made<Saturates>},
      {"collectives.rounding", "bf16 loses digits", made<LosesDigits>},
      {"collectives.average", "avg of f64 is the sum", made<SumForAverage>},
      {"collectives.average:2", "avg of i16 rounds down", made<AverageRoundsDown>},
      {"collectives.premul-sum", "factors of f32 are not used", made<OneFactor>},
      {"collectives.complex", "complex numbers are multiplied part by part", made<PartByPart>},
      {"collectives.bool", "true and true is 2", made<CountsBools>},
      {"collectives.bits-kept", "NaNs are made quiet", made<QuietsNans>},
      {"collectives.mismatch-op", "another rank's wrong operation is reported as BP_UNSUPPORTED",
       made<SaysUnsupported>},
      {"collectives.mismatch-dtype", "a message of another size ends the process", made<Crashes>},
      {"collectives.mismatch-count", "a byte too many is written", made<WritesTooMuch>},
      {"collectives.mismatch-count-smaller", "a byte too many is written", made<WritesTooMuchInSmall>},
      {"collectives.mismatch-root", "abort does not end a collective", made<CannotBeAborted>},
  };
}

}  // namespace backplane::specimen
