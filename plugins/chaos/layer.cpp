// SPDX-License-Identifier: Apache-2.0
#include "layer.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

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
    throw sdk::Failure(BP_INVALID, fmt::format("chaos: cannot read the rules in {}: {}", path, std::strerror(errno)),
                       -1, errno);
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kLongestFile) throw sdk::Failure(BP_INVALID, fmt::format("chaos: {} is longer than 1 MiB", path));
  return text;
}

std::vector<Rule> rules_of(const sdk::Options& options) {
  const std::string& text = options.text("rules");
  const std::string& path = options.text("file");
  if (text.empty() == path.empty()) {
    throw sdk::Failure(BP_INVALID, "chaos: give either rules or file, as in chaos?rules=rank 1 send after 10: drop");
  }
  std::vector<Rule> rules = path.empty() ? parse_rules(text, "option rules") : parse_rules(read_file(path), path);
  if (rules.empty())
    throw sdk::Failure(BP_INVALID, fmt::format("chaos: {} has no rule", path.empty() ? "rules" : path));
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
      host_.log(BP_LOG_INFO,
                fmt::format("{} messages of rank {} were overtaken by later ones to the same rank", overtaken, rank_));
    }
  }
  ChaosLayer(const ChaosLayer&) = delete;
  ChaosLayer& operator=(const ChaosLayer&) = delete;

  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    const std::optional<Fault> fault = faults_.match(op);
    if (!fault) return dispatcher_.submit(op, 0);
    const Rule& rule = *fault->rule;
    report(op, *fault);
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
  void report(const bp_op& op, const Fault& fault) const {
    const Rule& rule = *fault.rule;
    if (rule.action == Action::kCrash) return host_.log(BP_LOG_WARN, describe(op, rule));
    const bool is_delay = rule.action == Action::kDelay || rule.action == Action::kReorder;
    host_.log(*fault.log_limit, is_delay ? BP_LOG_DEBUG : BP_LOG_WARN, describe(op, rule));
  }

  std::string describe(const bp_op& op, const Rule& rule) const {
    return fmt::format("{} #{} of rank {} triggers rule {} ({})", sdk::op_name(op.kind), op.seq, rank_, rule.number,
                       rule.text);
  }

  const sdk::Host host_;
  const int32_t rank_;  // in the job
  Faults faults_;
  Dispatcher dispatcher_;
};

}  // namespace

std::unique_ptr<sdk::ProcessGroup> make_layer(const sdk::Context& context) {
  return std::make_unique<ChaosLayer>(context);
}

}  // namespace backplane::chaos
