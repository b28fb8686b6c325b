// SPDX-License-Identifier: Apache-2.0
//
// Rules that assign faults to operations. The language (examples are in share/doc/layers.md):
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
#include "backplane/base/log_limit.hpp"

namespace backplane::chaos {

enum class Action { kDelay, kReorder, kStall, kDrop, kError, kCrash };

struct Rule {
  std::string text;    // source text, for logs and errors
  size_t number = 0;   // from 1
  uint64_t kinds = 0;  // BP_BIT(BP_SEND) ...; 0: every kind
  std::optional<int32_t> first_rank;
  int32_t last_rank = 0;  // valid if first_rank is set
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

// `source` names the text in errors: "option rules" or a path. Throws sdk::Failure (BP_INVALID) with line, column, the
// offending word and the alternatives.
std::vector<Rule> parse_rules(std::string_view text, const std::string& source);

// A fault to inject into an operation.
struct Fault {
  const Rule* rule = nullptr;
  base::LogLimit* log_limit = nullptr;  // of the rule
  int64_t duration_ns = 0;              // delay, reorder, stall
};

// The rules that apply to one rank of one group, with their counters. Thread-safe. Deterministic: the n-th operation
// that matches a rule's kinds and peer gets the same fault in every run with the same seed, rules, rank and group name.
class Faults {
 public:
  // `rank` is the rank in the job.
  Faults(std::vector<Rule> rules, uint64_t seed, int32_t rank, std::string_view group);

  // Counts the operation for every rule that matches it. Returns the fault of the first rule that triggers.
  std::optional<Fault> match(const bp_op& op);

 private:
  struct Counted {
    explicit Counted(Rule given) : rule(std::move(given)) {}
    const Rule rule;
    base::LogLimit log_limit;
    std::atomic<uint64_t> matched = 0;
    std::atomic<uint64_t> triggered = 0;
  };

  // Uniform in [0, 1), a pure function of its arguments and the seed.
  double draw(const Rule& rule, uint64_t count, uint64_t purpose) const;
  bool triggers(Counted* counted, uint64_t count) const;

  uint64_t seed_;
  std::vector<std::unique_ptr<Counted>> rules_;  // those that apply to this rank
};

}  // namespace backplane::chaos
