// SPDX-License-Identifier: Apache-2.0
//
// Data-parallel training on handwritten digits, over whatever backend BACKPLANE_BACKEND names.
//
//     backplane run -n 4 --backend gloo digits
#include <backplane/backplane.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>

#include "options.hpp"
#include "training.hpp"

namespace bp = backplane;

namespace {

// Rank 0 reads the file and sends it to all ranks, so only its machine needs the file. No value: rank 0 has reported an
// error.
std::optional<digits::DataSet> load(bp::ProcessGroup& group, const digits::Options& options) {
  std::string csv;
  if (group.rank() == 0) {
    try {
      csv = digits::read_file(options.data.empty() ? digits::default_data_path() : options.data);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "digits: %s\n", e.what());
    }
  }
  csv = group.broadcast_object(csv, 0);
  if (csv.empty()) return std::nullopt;
  return digits::parse(csv);
}

// Returns the final accuracy.
double train(bp::ProcessGroup& group, const digits::DataSet& data, const digits::Settings& settings) {
  const bool speaks = group.rank() == 0;
  if (speaks) {
    std::printf("%d %s over %s; %zu digits to learn from, %zu held out\n", group.world_size(),
                group.world_size() == 1 ? "rank" : "ranks", group.backend().c_str(), data.training.size(),
                data.held_out.size());
  }
  digits::Training training(group, data, settings);
  const auto begin = std::chrono::steady_clock::now();
  double accuracy = 0;
  for (int epoch = 1; epoch <= settings.epochs; ++epoch) {
    const double loss = training.run_epoch();
    accuracy = training.accuracy();
    if (speaks) {
      std::printf("epoch %2d of %d: loss %.4f, %.4f%% of the held-out digits right\n", epoch, settings.epochs, loss,
                  accuracy);
      std::fflush(stdout);  // shows progress at once, also in a pipe
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (speaks) {
    std::printf("trained in %.2f s over %s, %.2f epochs per second\n", took.count(), group.backend().c_str(),
                settings.epochs / took.count());
  }
  return accuracy;
}

int run(const digits::Options& options) {
  bp::ProcessGroup group = bp::init_process_group();
  const std::optional<digits::DataSet> data = load(group, options);
  if (!data) return 1;
  const double accuracy = train(group, *data, options.settings);
  if (accuracy < options.require_accuracy && group.rank() == 0) {
    std::fprintf(stderr, "digits: %.4f%% is less than the %.4f%% required\n", accuracy, options.require_accuracy);
  }
  bp::destroy_process_group();
  return accuracy < options.require_accuracy ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const digits::Options options = digits::parse_options(argc, argv);
    if (options.help) {
      std::fputs(digits::kUsage, stdout);
      return 0;
    }
    return run(options);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "digits: %s\n", e.what());
    return 1;
  }
}
