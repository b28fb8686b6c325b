// SPDX-License-Identifier: Apache-2.0
#include "training.hpp"

#include <algorithm>
#include <numeric>

namespace digits {

namespace {

// Smaller than a part of a wide network: each part is then a pack of its own, which is reduced in place while the next
// parts are computed. The parts of a narrow network share a pack.
constexpr uint64_t kPackBytes = 256 * 1024;

}  // namespace

Training::Training(backplane::ProcessGroup group, const DataSet& data, const Settings& settings)
    : group_(std::move(group)),
      data_(data),
      settings_(settings),
      network_(settings.width),
      gradient_(network_.parameters().size()),
      velocity_(gradient_.size()),
      order_(data.training.size()),
      random_(settings.seed),
      reducer_(group_, {.method = backplane::ReduceMethod::kSum, .pack_bytes = kPackBytes}) {
  std::iota(order_.begin(), order_.end(), size_t{0});
  if (group_.rank() == 0) network_.initialise(settings.seed);
  backplane::bcast_list(std::vector<backplane::Buffer>{network_.parameters()}, group_);
}

Training::Training(backplane::ProcessGroup group, const DataSet& data, const Settings& settings, const State& state)
    : group_(std::move(group)),
      data_(data),
      settings_(settings),
      epoch_(state.epoch),
      network_(settings.width),
      gradient_(network_.parameters().size()),
      velocity_(state.velocity),
      order_(state.order),
      random_(state.random),
      reducer_(group_, {.method = backplane::ReduceMethod::kSum, .pack_bytes = kPackBytes}) {
  std::copy(state.parameters.begin(), state.parameters.end(), network_.parameters().begin());
}

State Training::state() {
  const std::span<double> parameters = network_.parameters();
  return {epoch_, {parameters.begin(), parameters.end()}, velocity_, order_, random_};
}

double Training::run_epoch() {
  std::shuffle(order_.begin(), order_.end(), random_);
  const auto batch = static_cast<size_t>(settings_.batch);
  // The learning rate decreases linearly to 0.
  rate_ = settings_.learning_rate * (1 - static_cast<double>(epoch_++) / settings_.epochs);
  double loss = 0;
  for (size_t begin = 0; begin < order_.size(); begin += batch) {
    loss += run_batch(begin, std::min(begin + batch, order_.size()));
  }
  return loss / static_cast<double>(order_.size());
}

// Returns the sum of the batch's losses.
double Training::run_batch(size_t begin, size_t end) {
  const auto rank = static_cast<size_t>(group_.rank());
  const auto ranks = static_cast<size_t>(group_.world_size());
  std::vector<Network::Pass> passes;
  double loss = 0;
  for (size_t i = begin + rank; i < end; i += ranks) {
    passes.push_back(network_.pass(data_.training[order_[i]]));
    loss += passes.back().loss;
  }
  std::vector<backplane::ReducedGradient> reduced;
  for (const Network::Part& part : network_.parts()) {
    const std::span<double> gradient = std::span(gradient_).subspan(part.begin, part.size);
    std::fill(gradient.begin(), gradient.end(), 0.0);
    for (const Network::Pass& pass : passes) network_.add_gradient(pass, part, gradient);
    reduced.push_back(reducer_.add(part.name, gradient));
  }
  const backplane::ReducedGradient reduced_loss = reducer_.add("loss", backplane::as_buffer(loss));
  reducer_.flush();
  // Updates each part while others are still being reduced.
  for (size_t i = 0; i < reduced.size(); ++i) {
    reduced[i].wait();
    step(network_.parts()[i], static_cast<double>(end - begin));
  }
  reduced_loss.wait();
  return loss;
}

void Training::step(const Network::Part& part, double batch_size) {
  const std::span<double> parameters = network_.parameters();
  for (size_t i = part.begin; i < part.begin + part.size; ++i) {
    velocity_[i] = settings_.momentum * velocity_[i] - rate_ * gradient_[i] / batch_size;
    parameters[i] += velocity_[i];
  }
}

double Training::accuracy() {
  int64_t right = 0;
  const auto ranks = static_cast<size_t>(group_.world_size());
  for (auto i = static_cast<size_t>(group_.rank()); i < data_.held_out.size(); i += ranks) {
    right += network_.classify(data_.held_out[i]) == data_.held_out[i].digit ? 1 : 0;
  }
  group_.all_reduce(backplane::as_buffer(right));
  return 100.0 * static_cast<double>(right) / static_cast<double>(data_.held_out.size());
}

}  // namespace digits
