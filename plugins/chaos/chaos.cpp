// SPDX-License-Identifier: Apache-2.0
//
// The layer `chaos`: deterministic fault injection by rules. See share/doc/layers.md.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "backplane/sdk/sdk.hpp"
#include "dispatcher.hpp"
#include "rules.hpp"

namespace backplane::chaos {
namespace {

constexpr size_t kLongestFile = size_t{1} << 20;

std::string read_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(kLongestFile + 1, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) {
    throw sdk::Failure(BP_INVALID, "chaos: cannot read the rules in " + path + ": " + std::strerror(errno), -1, errno);
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kLongestFile) throw sdk::Failure(BP_INVALID, "chaos: " + path + " is longer than 1 MiB");
  return text;
}

std::vector<Rule> rules_of(const sdk::Options& options) {
  const std::string& text = options.text("rules");
  const std::string& path = options.text("file");
  if (text.empty() == path.empty()) {
    throw sdk::Failure(BP_INVALID, "chaos: give either rules or file, as in chaos?rules=rank 1 send after 10: drop");
  }
  std::vector<Rule> rules = path.empty() ? parse_rules(text, "option rules") : parse_rules(read_file(path), path);
  if (rules.empty()) throw sdk::Failure(BP_INVALID, "chaos: " + (path.empty() ? "rules" : path) + " has no rule");
  return rules;
}

class ChaosLayer final : public sdk::Layer {
 public:
  explicit ChaosLayer(const sdk::Context& context)
      : Layer(context),
        host_(context.host),
        rank_(context.global_ranks[static_cast<size_t>(context.rank)]),
        faults_(rules_of(context.options), static_cast<uint64_t>(context.options.integer("seed")), rank_, context.name),
        dispatcher_(inner(), context.world_size) {
    host_.log(BP_LOG_INFO, "fault injection is on; seed " + context.options.text("seed"));
  }

  ~ChaosLayer() override {
    if (const uint64_t overtaken = dispatcher_.overtaken()) {
      host_.log(BP_LOG_INFO, std::to_string(overtaken) + " messages of rank " + std::to_string(rank_) +
                                 " were overtaken by later ones to the same rank");
    }
  }
  ChaosLayer(const ChaosLayer&) = delete;
  ChaosLayer& operator=(const ChaosLayer&) = delete;

  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    const std::optional<Fault> fault = faults_.match(op);
    if (!fault) return dispatcher_.submit(op, 0);
    const Rule& rule = *fault->rule;
    report(op, rule);
    switch (rule.action) {
      case Action::kDelay:
        return dispatcher_.submit(op, fault->duration_ns);
      case Action::kReorder:
        return dispatcher_.submit_reordered(op, fault->duration_ns);
      case Action::kStall:
        dispatcher_.stall(fault->duration_ns);
        return dispatcher_.submit(op, 0);
      case Action::kDrop:
        return dispatcher_.drop(op);
      case Action::kError:
        inner().drop(op);
        throw sdk::Failure(rule.status, "chaos: " + describe(op, rule),
                           op.kind == BP_SEND || op.kind == BP_RECV ? op.peer : -1);
      case Action::kCrash:
        break;
    }
    for (;;) kill(getpid(), SIGKILL);  // until it takes effect
  }

  void abort(const sdk::Failure& why) noexcept override {
    dispatcher_.abort(why);
    inner().abort(why);
  }

 private:
  // Logs the first faults as warnings and later ones at debug level. A crash is always a warning.
  void report(const bp_op& op, const Rule& rule) {
    constexpr uint64_t kMostWarnings = 100;
    const bool rare =
        rule.action != Action::kDelay && rule.action != Action::kReorder && warnings_.fetch_add(1) < kMostWarnings;
    host_.log(rare || rule.action == Action::kCrash ? BP_LOG_WARN : BP_LOG_DEBUG, describe(op, rule));
  }

  std::string describe(const bp_op& op, const Rule& rule) const {
    return std::string(sdk::op_name(op.kind)) + " #" + std::to_string(op.seq) + " of rank " + std::to_string(rank_) +
           " triggers rule " + std::to_string(rule.number) + " (" + rule.text + ")";
  }

  const sdk::Host host_;
  const int32_t rank_;  // in the job
  Faults faults_;
  Dispatcher dispatcher_;
  std::atomic<uint64_t> warnings_ = 0;
};

struct Chaos {
  static constexpr const char* id = "chaos";
  static constexpr const char* version = BACKPLANE_PLUGIN_VERSION;
  static constexpr const char* summary =
      "layer: delays, reorders, drops, errors, crashes and stalls by rule, to test programs";
  static constexpr uint32_t kinds = BP_KIND_LAYER;
  static constexpr uint32_t flags = BP_BACKEND_BOUNDED;
  static constexpr std::array options = {
      sdk::option(
          {.key = "rules", .help = "conditions: action; ... as in rank 1 send after 10: drop; chance 0.01: delay 5ms"}),
      sdk::option({.key = "file", .help = "file with the rules, one per line"}),
      sdk::option({.type = BP_OPTION_INT,
                   .key = "seed",
                   .default_value = "0",
                   .help = "seed of the random choices: the same seed gives the same faults",
                   .min = 0,
                   .max = 9e18}),
  };
  static constexpr std::array<bp_capability, 0> capabilities = {};
  static std::unique_ptr<sdk::ProcessGroup> init(const sdk::Context& context) {
    return std::make_unique<ChaosLayer>(context);
  }
};

}  // namespace
}  // namespace backplane::chaos

BACKPLANE_PLUGIN("Backplane", backplane::chaos::Chaos)
