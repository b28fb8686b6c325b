// SPDX-License-Identifier: Apache-2.0
//
// A perceptron with one hidden layer: 64 pixels, rectified units (32 by default), 10 classes with a softmax
// and its cross entropy.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data_set.hpp"

namespace digits {

class Network {
 public:
  using Scores = std::array<double, kClasses>;

  // A range of parameters whose gradient is computed and reduced over the ranks as a unit.
  struct Part {
    std::string name;
    size_t begin;
    size_t size;
  };
  // The forward and backward pass of one sample.
  struct Pass {
    const Sample* sample;
    std::vector<double> hidden;        // outputs of the hidden units
    std::vector<double> hidden_error;  // d loss / d hidden
    Scores error;                      // d loss / d score
    double loss;
  };

  explicit Network(int width);

  // Weights and biases of both layers, contiguous. Each unit's weights are followed by its bias.
  std::span<double> parameters() { return parameters_; }
  // In the order in which gradients are computed: from the output to the pixels.
  const std::vector<Part>& parts() const { return parts_; }

  // He et al. 2015, "Delving deep into rectifiers": weights of variance 2 / inputs, biases 0.
  void initialise(uint64_t seed);

  int classify(const Sample& sample) const;

  // Forward, and backward to the hidden units. The loss is rounded like gradients.
  Pass pass(const Sample& sample) const;

  // Adds one sample's contribution to the gradient of a part (part.size). Contributions are multiples of 2^-36: their
  // sums are exact in a double up to 2^17, and so independent of the order. The gradient of a batch is therefore the
  // same, bit for bit, for every number of ranks.
  void add_gradient(const Pass& pass, const Part& part, std::span<double> gradient) const;

 private:
  std::vector<double> hidden(const Sample& sample) const;
  Scores scores(std::span<const double> hidden) const;
  std::span<const double> unit(size_t index) const;        // of the hidden layer: kPixels weights, bias
  std::span<const double> class_unit(size_t index) const;  // of the output: width weights, bias

  const size_t width_;
  const size_t output_begin_;
  std::vector<double> parameters_;
  std::vector<Part> parts_;
};

}  // namespace digits
