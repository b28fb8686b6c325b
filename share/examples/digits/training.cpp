// SPDX-License-Identifier: Apache-2.0
#include "training.hpp"

#include <algorithm>
#include <numeric>

namespace digits {

Training::Training(backplane::ProcessGroup group, const DataSet& data, const Settings& settings)
    : group_(std::move(group)),
      data_(data),
      settings_(settings),
      velocity_(Network::kParameters),
      order_(data.training.size()),
      random_(settings.seed) {
  std::iota(order_.begin(), order_.end(), size_t{0});
  if (group_.rank() == 0) network_.initialise(settings.seed);
  group_.broadcast(network_.parameters(), 0);
}

double Training::run_epoch() {
  std::shuffle(order_.begin(), order_.end(), random_);
  const auto batch = static_cast<size_t>(settings_.batch);
  // The steps get shorter in a straight line towards 0, so that the last batches do not undo what was learnt.
  rate_ = settings_.learning_rate * (1 - static_cast<double>(epoch_++) / settings_.epochs);
  double loss = 0;
  for (size_t begin = 0; begin < order_.size(); begin += batch) {
    loss += run_batch(begin, std::min(begin + batch, order_.size()));
  }
  return loss / static_cast<double>(order_.size());
}

// Returns the sum of the batch's losses.
double Training::run_batch(size_t begin, size_t end) {
  // The loss travels behind the gradient: one call for both.
  std::vector<double> sums(Network::kParameters + 1);
  const std::span<double> gradient = std::span(sums).first(Network::kParameters);
  const auto rank = static_cast<size_t>(group_.rank());
  const auto ranks = static_cast<size_t>(group_.world_size());
  for (size_t i = begin + rank; i < end; i += ranks) {
    sums.back() += network_.add_gradient(data_.training[order_[i]], gradient);
  }
  group_.all_reduce(sums);
  step(gradient, static_cast<double>(end - begin));
  return sums.back();
}

void Training::step(std::span<const double> gradient, double batch_size) {
  const std::span<double> parameters = network_.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    velocity_[i] = settings_.momentum * velocity_[i] - rate_ * gradient[i] / batch_size;
    parameters[i] += velocity_[i];
  }
}

double Training::accuracy() {
  int64_t right = 0;
  const auto ranks = static_cast<size_t>(group_.world_size());
  for (auto i = static_cast<size_t>(group_.rank()); i < data_.held_out.size(); i += ranks) {
    right += network_.classify(data_.held_out[i]) == data_.held_out[i].digit ? 1 : 0;
  }
  group_.all_reduce(backplane::one(right));
  return 100.0 * static_cast<double>(right) / static_cast<double>(data_.held_out.size());
}

}  // namespace digits
