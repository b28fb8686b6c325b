// SPDX-License-Identifier: Apache-2.0
//
// Data-parallel training: every rank holds the whole network and works on its share of each batch.
#pragma once

#include <backplane/backplane.hpp>
#include <backplane/gradients.hpp>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "data_set.hpp"
#include "network.hpp"

namespace digits {

struct Settings {
  int epochs = 30;
  int width = 32;  // hidden units
  int batch = 32;  // samples of all ranks together
  uint64_t seed = 1;
  double learning_rate = 0.1;  // of the first epoch
  double momentum = 0.9;
};

// The training between two epochs, the same on every rank.
struct State {
  int epoch = 0;  // the number of epochs that have ended
  std::vector<double> parameters;
  std::vector<double> velocity;
  std::vector<size_t> order;  // of the samples
  std::mt19937_64 random;
};

// All ranks make the same calls with the same data and settings. The results do not depend on the number of ranks.
class Training {
 public:
  // Gives all ranks the same initial weights.
  Training(backplane::ProcessGroup group, const DataSet& data, const Settings& settings);
  // Continues from a state, the same on all ranks.
  Training(backplane::ProcessGroup group, const DataSet& data, const Settings& settings, const State& state);

  // Between epochs.
  State state();

  // Trains on all samples once. Returns their mean loss, the same on every rank.
  double run_epoch();

  // The percentage of held-out samples that are classified correctly; the same on every rank.
  double accuracy();

 private:
  double run_batch(size_t begin, size_t end);
  void step(const Network::Part& part, double batch_size);

  backplane::ProcessGroup group_;
  const DataSet& data_;
  const Settings settings_;
  int epoch_ = 0;
  double rate_ = 0;  // of this epoch
  Network network_;
  std::vector<double> gradient_;
  std::vector<double> velocity_;
  std::vector<size_t> order_;           // of the samples
  std::mt19937_64 random_;              // the same sequence on every rank, so that all agree on the order
  backplane::GradientReducer reducer_;  // uses gradient_ until it ends
};

}  // namespace digits
