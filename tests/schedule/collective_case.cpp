// SPDX-License-Identifier: Apache-2.0
#include "schedule/collective_case.hpp"

#include <algorithm>
#include <iterator>

namespace backplane::core::testing {

namespace {

enum class Layout { kWhole, kBlocks };  // one range of elements, or one block per rank

struct Traits {
  const char* name;
  bool rooted;
  bool varying;
  bool in_place;
  Layout input, output;
};

constexpr Traits kTraits[] = {
    {"barrier", false, false, false, Layout::kWhole, Layout::kWhole},
    {"broadcast", true, false, false, Layout::kWhole, Layout::kWhole},  // in place by definition
    {"reduce", true, false, true, Layout::kWhole, Layout::kWhole},
    {"all_reduce", false, false, true, Layout::kWhole, Layout::kWhole},
    {"gather", true, false, true, Layout::kWhole, Layout::kBlocks},
    {"gatherv", true, true, true, Layout::kWhole, Layout::kBlocks},
    {"scatter", true, false, true, Layout::kBlocks, Layout::kWhole},
    {"scatterv", true, true, true, Layout::kBlocks, Layout::kWhole},
    {"all_gather", false, false, true, Layout::kWhole, Layout::kBlocks},
    {"all_gatherv", false, true, true, Layout::kWhole, Layout::kBlocks},
    {"reduce_scatter", false, false, true, Layout::kBlocks, Layout::kWhole},
    {"reduce_scatterv", false, true, true, Layout::kBlocks, Layout::kWhole},
    {"all_to_all", false, false, true, Layout::kBlocks, Layout::kBlocks},
    {"all_to_allv", false, true, false, Layout::kBlocks, Layout::kBlocks},
    {"send", false, false, false, Layout::kWhole, Layout::kWhole},  // not a collective
    {"recv", false, false, false, Layout::kWhole, Layout::kWhole},
    {"scan", false, false, true, Layout::kWhole, Layout::kWhole},
    {"exscan", false, false, true, Layout::kWhole, Layout::kWhole},
};
static_assert(std::size(kTraits) == BP_OP_COUNT);

bool reduces(uint32_t kind) { return (BP_REDUCTIONS & BP_BIT(kind)) != 0; }

// The ranks whose inputs are in the output of `rank`.
uint64_t contributors(const Shape& shape, int32_t rank) {
  const auto below = [](int32_t ranks) { return ranks == 0 ? 0 : ~uint64_t{0} >> (64 - ranks); };
  if (shape.kind == BP_SCAN) return below(rank + 1);
  if (shape.kind == BP_EXSCAN) return below(rank);
  return below(shape.world_size);
}

// Whether only the root has an input or an output.
bool input_at_root(uint32_t kind) { return kind == BP_BROADCAST || kind == BP_SCATTER || kind == BP_SCATTERV; }
bool output_at_root(uint32_t kind) { return kind == BP_REDUCE || kind == BP_GATHER || kind == BP_GATHERV; }

}  // namespace

std::vector<uint32_t> collective_kinds() {
  std::vector<uint32_t> kinds;
  for (uint32_t kind = BP_BARRIER; kind < BP_OP_COUNT; ++kind) {
    if (kind != BP_SEND && kind != BP_RECV) kinds.push_back(kind);
  }
  return kinds;
}

bool is_rooted(uint32_t kind) { return kTraits[kind].rooted; }
bool is_varying(uint32_t kind) { return kTraits[kind].varying; }
bool is_cut(uint32_t kind) { return kTraits[kind].input == Layout::kWhole && kTraits[kind].output == Layout::kWhole; }
bool has_in_place(uint32_t kind) { return kTraits[kind].in_place; }
std::string name_of_kind(uint32_t kind) { return kTraits[kind].name; }

CollectiveCase::CollectiveCase(const Shape& shape) : shape_(shape) {
  for (int32_t rank = 0; rank < shape.world_size; ++rank) {
    inputs_.push_back(input_blocks(rank));
    outputs_.push_back(output_blocks(rank));
  }
}

// The elements that one rank sends to another. For kinds with the same division on all ranks, `to` or `from` is 0.
uint64_t CollectiveCase::block_count(int32_t from, int32_t to) const {
  if (!is_varying(shape_.kind)) return shape_.count;
  const auto spread = static_cast<uint64_t>(from) * 7 + static_cast<uint64_t>(to) * 3;
  return spread % 4 == 1 ? 0 : (spread + shape_.count) % (shape_.count + 1);
}

// v-variants: the last block first, with one unused element between blocks.
CollectiveCase::Blocks CollectiveCase::lay_out(const std::vector<uint64_t>& counts) const {
  Blocks blocks;
  blocks.counts = counts;
  blocks.displs.resize(counts.size());
  const bool varying = is_varying(shape_.kind);
  for (size_t i = 0; i < counts.size(); ++i) {
    const size_t block = varying ? counts.size() - 1 - i : i;
    blocks.displs[block] = blocks.extent;
    blocks.extent += counts[block] + (varying ? 1 : 0);
  }
  return blocks;
}

CollectiveCase::Blocks CollectiveCase::input_blocks(int32_t rank) const {
  const uint32_t kind = shape_.kind;
  if (kind == BP_BARRIER || (input_at_root(kind) && rank != shape_.root)) return {};
  if (kTraits[kind].input == Layout::kWhole) {
    const uint64_t count = block_count(rank, 0);
    return {{count}, {0}, count};
  }
  std::vector<uint64_t> counts;
  const bool own_division = kind == BP_ALL_TO_ALLV;
  for (int32_t to = 0; to < shape_.world_size; ++to) counts.push_back(block_count(own_division ? rank : 0, to));
  return lay_out(counts);
}

CollectiveCase::Blocks CollectiveCase::output_blocks(int32_t rank) const {
  const uint32_t kind = shape_.kind;
  if (kind == BP_BARRIER || (output_at_root(kind) && rank != shape_.root)) return {};
  if (kTraits[kind].output == Layout::kWhole) {
    const uint64_t count = block_count(0, rank);
    return {{count}, {0}, count};
  }
  std::vector<uint64_t> counts;
  const bool own_division = kind == BP_ALL_TO_ALLV;
  for (int32_t from = 0; from < shape_.world_size; ++from) counts.push_back(block_count(from, own_division ? rank : 0));
  return lay_out(counts);
}

CollectiveSpec CollectiveCase::spec(int32_t rank) const {
  CollectiveSpec spec;
  spec.kind = shape_.kind;
  spec.rank = rank;
  spec.world_size = shape_.world_size;
  spec.root = shape_.root;
  spec.element_size = shape_.element_size;
  spec.topology = shape_.topology;
  spec.may_overlap = shape_.in_place;
  if (!is_varying(shape_.kind)) {
    spec.count = shape_.count;
    return spec;
  }
  const Blocks& in = inputs_[static_cast<size_t>(rank)];
  const Blocks& out = outputs_[static_cast<size_t>(rank)];
  if (shape_.kind == BP_GATHERV) spec.own_count = block_count(rank, 0);
  if (shape_.kind == BP_SCATTERV) spec.own_count = block_count(0, rank);
  if (kTraits[shape_.kind].input == Layout::kBlocks && !in.counts.empty()) {
    spec.in_counts = in.counts.data();
    spec.in_displs = in.displs.data();
  }
  if (kTraits[shape_.kind].output == Layout::kBlocks && !out.counts.empty()) {
    spec.out_counts = out.counts.data();
    spec.out_displs = out.displs.data();
  }
  return spec;
}

Memory CollectiveCase::memory(int32_t rank) const {
  const Blocks& in = inputs_[static_cast<size_t>(rank)];
  const Blocks& out = outputs_[static_cast<size_t>(rank)];
  const auto own = static_cast<size_t>(rank);
  Memory memory;
  memory.input_count = in.extent;
  memory.output_count = out.extent;
  const bool both = !in.counts.empty() && !out.counts.empty();
  if (both && (shape_.in_place || shape_.kind == BP_BROADCAST)) {
    const bool input_inside = kTraits[shape_.kind].input == Layout::kWhole;
    const bool output_inside = kTraits[shape_.kind].output == Layout::kWhole;
    if (input_inside && !output_inside) memory.input_at = out.displs[own];
    if (output_inside && !input_inside) memory.output_at = in.displs[own];
    memory.cells.resize(std::max(in.extent, out.extent));
  } else {
    memory.output_at = in.extent;
    memory.cells.resize(in.extent + out.extent);
  }
  for (uint64_t i = 0; i < in.extent; ++i) memory.cells[memory.input_at + i] = fresh_symbol(rank, i);
  return memory;
}

std::vector<Memory> CollectiveCase::memories() const {
  std::vector<Memory> all;
  for (int32_t rank = 0; rank < shape_.world_size; ++rank) all.push_back(memory(rank));
  return all;
}

// Expressions are 0 if several ranks contribute; check() does not compare them.
std::vector<Symbol> CollectiveCase::expected_output(int32_t rank) const {
  const auto self = static_cast<size_t>(rank);
  const Blocks& out = outputs_[self];
  std::vector<Symbol> expected(out.extent);
  const uint64_t among = contributors(shape_, rank);
  if (reduces(shape_.kind) && among == 0) {  // exscan does not change the output of rank 0
    for (uint64_t i = 0; shape_.in_place && i < out.extent; ++i) expected[i] = fresh_symbol(rank, i);
    return expected;
  }
  for (size_t block = 0; block < out.counts.size(); ++block) {
    const bool whole = kTraits[shape_.kind].output == Layout::kWhole;
    const auto from = whole ? shape_.root : static_cast<int32_t>(block);
    const Blocks& in = inputs_[static_cast<size_t>(from)];
    const uint64_t begin = kTraits[shape_.kind].input == Layout::kBlocks ? in.displs[self] : 0;
    for (uint64_t i = 0; i < out.counts[block]; ++i)
      expected[out.displs[block] + i] =
          reduces(shape_.kind) ? Symbol{among, begin + i, 0} : fresh_symbol(from, begin + i);
  }
  return expected;
}

void CollectiveCase::check(const std::vector<Memory>& after) const {
  const auto fail = [](int32_t rank, const char* what, uint64_t index) {
    throw SimulationError("rank " + std::to_string(rank) + ": " + what + " element " + std::to_string(index));
  };
  for (int32_t rank = 0; rank < shape_.world_size; ++rank) {
    const Memory& memory = after[static_cast<size_t>(rank)];
    const std::vector<Symbol> expected = expected_output(rank);
    for (uint64_t i = 0; i < expected.size(); ++i) {
      Symbol found = memory.cells[memory.output_at + i];
      if (found.contributors == 0 && expected[i].contributors == 0) continue;
      if (reduces(shape_.kind) && shape_.world_size > 1) {
        // The same expression on all ranks is the same bits on all ranks.
        const Memory& first = after[0];
        if (shape_.kind == BP_ALL_REDUCE && found.expression != first.cells[first.output_at + i].expression)
          fail(rank, "other expression than rank 0 in output", i);
        found.expression = expected[i].expression;
      }
      if (shape_.world_size == 1) found.expression = expected[i].expression;
      if (found != expected[i]) fail(rank, "wrong output", i);
    }
    for (uint64_t i = 0; i < memory.input_count; ++i) {
      const uint64_t cell = memory.input_at + i;
      const bool also_output = cell >= memory.output_at && cell < memory.output_at + memory.output_count;
      if (!also_output && memory.cells[cell] != fresh_symbol(rank, i)) fail(rank, "written input", i);
    }
  }
}

Traffic run_and_check(Algorithm algorithm, const Shape& shape) {
  const CollectiveCase test(shape);
  std::vector<Schedule> schedules;
  for (int32_t rank = 0; rank < shape.world_size; ++rank)
    schedules.push_back(make_schedule(algorithm, test.spec(rank)));
  std::vector<Memory> memories = test.memories();
  const std::vector<int32_t> none;
  const Traffic traffic =
      simulate(schedules, memories, shape.topology == nullptr ? none : shape.topology->levels.back());
  test.check(memories);
  return traffic;
}

}  // namespace backplane::core::testing
