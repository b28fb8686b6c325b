// SPDX-License-Identifier: Apache-2.0
//
// A perceptron with one hidden layer: 64 pixels, 32 rectified units, 10 classes with a softmax and its cross entropy.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "data_set.hpp"

namespace digits {

class Network {
 public:
  static constexpr int kHidden = 32;
  // Weights and biases of both layers, in one run, so that one call sends or reduces them all. Each unit's weights are
  // followed by its bias.
  static constexpr size_t kParameters = (kPixels + 1) * kHidden + (kHidden + 1) * kClasses;

  Network() : parameters_(kParameters) {}

  std::span<double> parameters() { return parameters_; }

  // He et al. 2015, "Delving deep into rectifiers": weights of variance 2 / inputs, biases 0.
  void initialise(uint64_t seed);

  int classify(const Sample& sample) const;

  // Adds the gradient of one sample's loss to `gradient` (kParameters); returns the loss. What is added, and what is
  // returned, is a multiple of 2^-36: sums of such numbers are exact in a double up to 2^17, and therefore the same in
  // any order. A batch has one gradient to the last bit, whichever way it is spread over ranks.
  double add_gradient(const Sample& sample, std::span<double> gradient) const;

 private:
  using Hidden = std::array<double, kHidden>;
  using Scores = std::array<double, kClasses>;

  Hidden hidden(const Sample& sample) const;
  Scores scores(const Hidden& hidden) const;
  std::span<const double> unit(int index) const;        // of the hidden layer: kPixels weights, bias
  std::span<const double> class_unit(int index) const;  // of the output: kHidden weights, bias

  std::vector<double> parameters_;
};

}  // namespace digits
