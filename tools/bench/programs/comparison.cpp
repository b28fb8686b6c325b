// SPDX-License-Identifier: Apache-2.0
#include "programs/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

namespace backplane::bench {
namespace {

using Clock = std::chrono::steady_clock;

// The minimum of rounds, and of batches per turn.
size_t min_rounds(const Arguments& arguments) { return arguments.quick ? 1 : 3; }

double batch_us(const Action& action, const Scenario& scenario) {
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < scenario.calls; ++i) action();
  const std::chrono::duration<double, std::micro> took = Clock::now() - begin;
  return took.count() / scenario.calls / scenario.per_call;
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

// Returns rank 0's value on all ranks.
bool agree(ProcessGroup& group, bool value) {
  uint8_t shared = value ? 1 : 0;
  group.broadcast(as_buffer(shared), 0);
  return shared != 0;
}

// The load average of the last minute.
double load() {
  double minutes[1] = {-1};
  return ::getloadavg(minutes, 1) == 1 ? minutes[0] : -1;
}

void print_json(const std::string& bare, const std::vector<Outcome>& outcomes) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Outcome& o : outcomes) {
    rows.push_back({{"what", o.scenario.what},
                    {"bytes", o.scenario.bytes},
                    {"rounds", o.rounds},
                    {"calls", o.scenario.calls},
                    {"bare_us", o.bare_us},
                    {"backplane_us", o.ours_us},
                    {"fastest_bare_us", o.fastest_bare_us},
                    {"fastest_backplane_us", o.fastest_ours_us},
                    {"ratio", o.ratio},
                    {"ratio_quartiles", {o.low, o.high}}});
  }
  const nlohmann::ordered_json report = {{"bare", bare}, {"load", load()}, {"rows", std::move(rows)}};
  fmt::print("{}\n", report.dump(2));
}

// Runs one turn and returns microseconds per operation. `which`: 0 bare, 1 ours.
using Turn = std::function<double(size_t which)>;

Outcome take_turns(const Scenario& scenario, const Arguments& arguments, ProcessGroup& group, bool warm,
                   const Turn& turn) {
  std::vector<double> times[2];
  std::vector<double> ratios;
  const auto end = Clock::now() + std::chrono::duration<double>(arguments.quick ? 0 : arguments.seconds);
  for (size_t round = 0; agree(group, ratios.size() < min_rounds(arguments) || Clock::now() < end); ++round) {
    double us[2] = {};
    us[round % 2] = turn(round % 2);
    us[1 - round % 2] = turn(1 - round % 2);
    if (std::exchange(warm, true)) {
      times[0].push_back(us[0]);
      times[1].push_back(us[1]);
      ratios.push_back(us[1] / us[0]);
    }
  }
  return {scenario,
          ratios.size(),
          quantile(times[0], 0.5),
          quantile(times[1], 0.5),
          quantile(times[0], 0),
          quantile(times[1], 0),
          quantile(ratios, 0.5),
          quantile(ratios, 0.25),
          quantile(ratios, 0.75)};
}

}  // namespace

Outcome compare(const Scenario& scenario, const Arguments& arguments, ProcessGroup& group, const Action& bare,
                const Action& ours) {
  // The first round warms up connections and caches.
  return take_turns(scenario, arguments, group, false, [&](size_t which) {
    group.barrier();
    return batch_us(which == 0 ? bare : ours, scenario);
  });
}

Outcome compare_apart(const Scenario& scenario, const Arguments& arguments, ProcessGroup& group, const MakeAction& bare,
                      const MakeAction& ours) {
  constexpr auto kTurn = std::chrono::milliseconds(50);
  constexpr int kWarmUpBatches = 2;
  return take_turns(scenario, arguments, group, true, [&](size_t which) {
    const Action side = which == 0 ? bare() : ours();
    std::vector<double> batches = {0};
    group.barrier();
    if (group.rank() == 0) {
      for (int i = 0; i < kWarmUpBatches; ++i) batch_us(side, scenario);
      batches.clear();
      const auto end = Clock::now() + (arguments.quick ? kTurn / 50 : kTurn);
      while (batches.size() < min_rounds(arguments) || Clock::now() < end) batches.push_back(batch_us(side, scenario));
    }
    group.barrier();
    return quantile(batches, 0.5);
  });
}

Arguments parse(int argc, char** argv) {
  Arguments result;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") {
      result.json = true;
    } else if (word == "--quick") {
      result.quick = true;
    } else if (word == "--pin") {
      result.pin = true;
    } else if (word == "--seconds" && i + 1 < argc && std::atof(argv[i + 1]) > 0) {
      result.seconds = std::atof(argv[++i]);
    } else if (word == "--options" && i + 1 < argc) {
      result.options = argv[++i];
    } else {
      const bool help = word == "--help";
      fmt::print(help ? stdout : stderr, "usage: {} [--quick] [--pin] [--seconds N] [--options TEXT] [--json]\n",
                 argv[0]);
      std::exit(help ? 0 : 2);
    }
  }
  return result;
}

void print(const std::string& bare, const std::vector<Outcome>& outcomes, bool json) {
  if (json) return print_json(bare, outcomes);
  fmt::print("2 ranks; microseconds per operation; load {:.1f}\n", load());
  fmt::print("{:<8}{:>10} |{:>19} {:>18} |{:>19} {:>18} |{:>8}  {:<13} rounds x calls\n", "", "bytes",
             "median: " + bare, "backplane", "fastest: " + bare, "backplane", "ratio", "quartiles");
  for (const Outcome& o : outcomes) {
    fmt::print("{:<8}{:>10} |{:>19.1f} {:>18.1f} |{:>19.1f} {:>18.1f} |{:>8.3f}  {:.3f}-{:.3f}   {} x {}\n",
               o.scenario.what, o.scenario.bytes, o.bare_us, o.ours_us, o.fastest_bare_us, o.fastest_ours_us, o.ratio,
               o.low, o.high, o.rounds, o.scenario.calls);
  }
}

}  // namespace backplane::bench
