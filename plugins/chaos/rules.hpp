// SPDX-License-Identifier: Apache-2.0
//
// Which operations meet which fault. The language (share/doc/layers.md tells it with examples):
//
//     rules     = [rule] *((";" | newline) [rule])        "#" begins a comment that ends with its line
//     rule      = *condition ":" action                   all conditions must hold
//     condition = "any" | kind *("|" kind) | "rank" N ["-" N] | "peer" N | "after" N | "every" N | "times" N | "once"
//               | "chance" P | P"%"
//     kind      = "all_reduce" | ... | "send" | "recv" | "collective" | "message"
//     action    = "delay" D [".." D] | "stall" D | "drop" | "error" status | "crash"
//
// Words are separated by blanks, commas or plus signs.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backplane/abi/op.h"

namespace backplane::chaos {

enum class Action { kDelay, kReorder, kStall, kDrop, kError, kCrash };

struct Rule {
  std::string text;    // as it was written, for logs and errors
  size_t number = 0;   // counts from 1
  uint64_t kinds = 0;  // BP_BIT(BP_SEND) ...; 0: every kind
  std::optional<int32_t> first_rank;
  int32_t last_rank = 0;  // if first_rank is there
  std::optional<int32_t> peer;
  std::optional<uint64_t> tag;
  std::optional<uint64_t> after;
  std::optional<uint64_t> every;  // at least 1
  std::optional<uint64_t> times;
  std::optional<double> chance;  // 0..1
  Action action = Action::kDrop;
  int64_t least_ns = 0;  // delay, reorder, stall
  int64_t most_ns = 0;
  int32_t status = 0;  // error
};

// `source` is what errors call the text: "option rules" or a path. Throws sdk::Failure (BP_INVALID) with the line, the
// column and the word that is wrong, and what could stand there.
std::vector<Rule> parse_rules(std::string_view text, const std::string& source);

// A fault that an operation meets.
struct Fault {
  const Rule* rule = nullptr;
  int64_t duration_ns = 0;  // delay, reorder, stall
};

// The rules as they apply to one rank of one group, with their counters. Any thread. The n-th operation that a rule's
// kinds and peer fit meets the same fault in every run with the same seed, rules, rank and group name.
class Faults {
 public:
  // `rank` is the rank in the job.
  Faults(std::vector<Rule> rules, uint64_t seed, int32_t rank, std::string_view group);

  // Counts the operation with every rule that fits it; the first that strikes is the answer.
  std::optional<Fault> judge(const bp_op& op);

 private:
  struct Counted {
    explicit Counted(Rule given) : rule(std::move(given)) {}
    const Rule rule;
    std::atomic<uint64_t> fitted = 0;
    std::atomic<uint64_t> struck = 0;
  };

  // Uniform in [0, 1), the same for the same arguments.
  double draw(const Rule& rule, uint64_t count, uint64_t purpose) const;
  bool strikes(Counted* counted, uint64_t count) const;

  uint64_t seed_;
  std::vector<std::unique_ptr<Counted>> rules_;  // those for this rank
};

}  // namespace backplane::chaos
