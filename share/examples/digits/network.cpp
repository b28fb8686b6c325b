// SPDX-License-Identifier: Apache-2.0
#include "network.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

namespace digits {

namespace {

constexpr size_t kUnitSize = kPixels + 1;
constexpr size_t kUnitsPerPart = 512;

// Rounds to a multiple of 2^-36, the precision of a double near 1.5 * 2^16.
double coarse(double value) {
  constexpr double kLarge = 0x1.8p16;
  return (value + kLarge) - kLarge;
}

double weighted_sum(std::span<const double> unit, std::span<const double> inputs) {
  double sum = unit.back();
  for (size_t i = 0; i < inputs.size(); ++i) sum += unit[i] * inputs[i];
  return sum;
}

void add_unit_gradient(std::span<double> unit, std::span<const double> inputs, double error) {
  for (size_t i = 0; i < inputs.size(); ++i) unit[i] += coarse(error * inputs[i]);
  unit.back() += coarse(error);
}

// Converts scores to probabilities. Returns the cross entropy with `digit`.
double softmax(std::span<double> scores, int digit) {
  const double highest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - highest);
  for (double& score : scores) score /= sum;
  return -std::log(std::max(scores[static_cast<size_t>(digit)], 1e-300));
}

}  // namespace

Network::Network(int width)
    : width_(static_cast<size_t>(width)),
      output_begin_(kUnitSize * width_),
      parameters_(output_begin_ + (width_ + 1) * kClasses) {
  parts_.push_back({"output", output_begin_, parameters_.size() - output_begin_});
  for (size_t first = 0; first < width_; first += kUnitsPerPart) {
    const size_t units = std::min(kUnitsPerPart, width_ - first);
    parts_.push_back({"hidden units from " + std::to_string(first), first * kUnitSize, units * kUnitSize});
  }
}

std::span<const double> Network::unit(size_t index) const {
  return std::span(parameters_).subspan(index * kUnitSize, kUnitSize);
}

std::span<const double> Network::class_unit(size_t index) const {
  return std::span(parameters_).subspan(output_begin_ + index * (width_ + 1), width_ + 1);
}

void Network::initialise(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto fill = [&random](std::span<double> units, size_t unit_size) {
    std::normal_distribution<double> weight(0, std::sqrt(2.0 / static_cast<double>(unit_size - 1)));
    for (size_t i = 0; i < units.size(); ++i) units[i] = (i + 1) % unit_size == 0 ? 0 : weight(random);
  };
  fill(parameters().first(output_begin_), kUnitSize);
  fill(parameters().subspan(output_begin_), width_ + 1);
}

std::vector<double> Network::hidden(const Sample& sample) const {
  std::vector<double> result(width_);
  for (size_t i = 0; i < width_; ++i) result[i] = std::max(0.0, weighted_sum(unit(i), sample.pixels));
  return result;
}

Network::Scores Network::scores(std::span<const double> hidden) const {
  Scores result{};
  for (size_t i = 0; i < result.size(); ++i) result[i] = weighted_sum(class_unit(i), hidden);
  return result;
}

int Network::classify(const Sample& sample) const {
  const Scores result = scores(hidden(sample));
  return static_cast<int>(std::max_element(result.begin(), result.end()) - result.begin());
}

Network::Pass Network::pass(const Sample& sample) const {
  Pass pass = {&sample, hidden(sample), std::vector<double>(width_), {}, 0};
  pass.error = scores(pass.hidden);
  pass.loss = coarse(softmax(pass.error, sample.digit));
  pass.error[static_cast<size_t>(sample.digit)] -= 1;
  for (size_t c = 0; c < pass.error.size(); ++c) {
    const std::span<const double> weights = class_unit(c);
    for (size_t i = 0; i < width_; ++i) pass.hidden_error[i] += pass.error[c] * weights[i];
  }
  return pass;
}

void Network::add_gradient(const Pass& pass, const Part& part, std::span<double> gradient) const {
  if (part.begin == output_begin_) {
    for (size_t c = 0; c < pass.error.size(); ++c) {
      add_unit_gradient(gradient.subspan(c * (width_ + 1), width_ + 1), pass.hidden, pass.error[c]);
    }
    return;
  }
  const size_t first = part.begin / kUnitSize;
  for (size_t i = 0; i < part.size / kUnitSize; ++i) {
    if (pass.hidden[first + i] == 0) continue;  // the derivative of the rectifier is 0
    add_unit_gradient(gradient.subspan(i * kUnitSize, kUnitSize), pass.sample->pixels, pass.hidden_error[first + i]);
  }
}

}  // namespace digits
