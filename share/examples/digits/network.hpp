// SPDX-License-Identifier: Apache-2.0
//
// A perceptron with one hidden layer: 64 pixels, rectified units (32 unless said otherwise), 10 classes with a softmax
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

  // A run of parameters whose gradient is computed, and reduced over the ranks, by itself.
  struct Part {
    std::string name;
    size_t begin;
    size_t size;
  };
  // One sample on its way through the network and back.
  struct Pass {
    const Sample* sample;
    std::vector<double> hidden;        // what the hidden units answer
    std::vector<double> hidden_error;  // d loss / d hidden
    Scores error;                      // d loss / d score
    double loss;
  };

  explicit Network(int width);

  // Weights and biases of both layers, in one run. Each unit's weights are followed by its bias.
  std::span<double> parameters() { return parameters_; }
  // In the order in which gradients become known: from the output back to the pixels.
  const std::vector<Part>& parts() const { return parts_; }

  // He et al. 2015, "Delving deep into rectifiers": weights of variance 2 / inputs, biases 0.
  void initialise(uint64_t seed);

  int classify(const Sample& sample) const;

  // There, and back as far as the hidden units. Its loss is rounded like gradients are.
  Pass pass(const Sample& sample) const;

  // Adds what one sample contributes to the gradient of a part (part.size). That is a multiple of 2^-36: sums of such
  // numbers are exact in a double up to 2^17, and therefore the same in any order. A batch has one gradient to the last
  // bit, whichever way it is spread over ranks.
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
