// SPDX-License-Identifier: Apache-2.0
#include "network.hpp"

#include <algorithm>
#include <cmath>
#include <random>

namespace digits {

namespace {

constexpr size_t kUnitSize = kPixels + 1;
constexpr size_t kClassUnitSize = Network::kHidden + 1;
constexpr size_t kOutputBegin = kUnitSize * Network::kHidden;

// Rounds to a multiple of 2^-36: beside 1.5 * 2^16 a double has no finer digits.
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

// Turns scores into probabilities; returns the cross entropy with `digit`.
double softmax(std::span<double> scores, int digit) {
  const double highest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - highest);
  for (double& score : scores) score /= sum;
  return -std::log(std::max(scores[static_cast<size_t>(digit)], 1e-300));
}

}  // namespace

std::span<const double> Network::unit(int index) const {
  return std::span(parameters_).subspan(static_cast<size_t>(index) * kUnitSize, kUnitSize);
}

std::span<const double> Network::class_unit(int index) const {
  return std::span(parameters_).subspan(kOutputBegin + static_cast<size_t>(index) * kClassUnitSize, kClassUnitSize);
}

void Network::initialise(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto fill = [&random](std::span<double> units, size_t unit_size) {
    std::normal_distribution<double> weight(0, std::sqrt(2.0 / static_cast<double>(unit_size - 1)));
    for (size_t i = 0; i < units.size(); ++i) units[i] = (i + 1) % unit_size == 0 ? 0 : weight(random);
  };
  fill(parameters().first(kOutputBegin), kUnitSize);
  fill(parameters().subspan(kOutputBegin), kClassUnitSize);
}

Network::Hidden Network::hidden(const Sample& sample) const {
  Hidden result{};
  for (int i = 0; i < kHidden; ++i) {
    result[static_cast<size_t>(i)] = std::max(0.0, weighted_sum(unit(i), sample.pixels));
  }
  return result;
}

Network::Scores Network::scores(const Hidden& hidden) const {
  Scores result{};
  for (int i = 0; i < kClasses; ++i) result[static_cast<size_t>(i)] = weighted_sum(class_unit(i), hidden);
  return result;
}

int Network::classify(const Sample& sample) const {
  const Scores result = scores(hidden(sample));
  return static_cast<int>(std::max_element(result.begin(), result.end()) - result.begin());
}

double Network::add_gradient(const Sample& sample, std::span<double> gradient) const {
  const Hidden active = hidden(sample);
  Scores error = scores(active);
  const double loss = softmax(error, sample.digit);
  error[static_cast<size_t>(sample.digit)] -= 1;  // d loss / d score

  Hidden hidden_error{};
  for (size_t c = 0; c < error.size(); ++c) {
    const std::span<const double> weights = class_unit(static_cast<int>(c));
    for (size_t i = 0; i < hidden_error.size(); ++i) hidden_error[i] += error[c] * weights[i];
    add_unit_gradient(gradient.subspan(kOutputBegin + c * kClassUnitSize, kClassUnitSize), active, error[c]);
  }
  for (size_t i = 0; i < active.size(); ++i) {
    if (active[i] == 0) continue;  // the rectifier passes nothing back
    add_unit_gradient(gradient.subspan(i * kUnitSize, kUnitSize), sample.pixels, hidden_error[i]);
  }
  return coarse(loss);
}

}  // namespace digits
