// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <charconv>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace digits {

const char* const kUsage =
    "usage: digits [--epochs N] [--batch N] [--width N] [--seed N] [--learning-rate X] [--data PATH]\n"
    "              [--require-accuracy PERCENT]\n"
    "\n"
    "Trains a small network on handwritten digits, data-parallel on as many ranks as were started:\n"
    "\n"
    "    backplane run -n 4 --backend gloo digits\n"
    "\n"
    "--width: hidden units (32). A wide network (4096) shows how much of the communication is hidden behind the\n"
    "computing: compare the epochs per second of one rank and of two.\n";

namespace {

template <typename T>
T number(std::string_view option, std::string_view text, T lowest) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= lowest)) {
    std::ostringstream why;
    why << option << " needs a number of at least " << lowest << ", not '" << text << "'";
    throw std::runtime_error(why.str());
  }
  return value;
}

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    if (option == "--help" || option == "-h") {
      options.help = true;
      return options;
    }
    if (i + 1 == argc) throw std::runtime_error(std::string(option) + " is not an option, or its value is missing");
    const std::string_view value = argv[++i];
    if (option == "--epochs") {
      options.settings.epochs = number(option, value, 1);
    } else if (option == "--batch") {
      options.settings.batch = number(option, value, 1);
    } else if (option == "--width") {
      options.settings.width = number(option, value, 1);
    } else if (option == "--seed") {
      options.settings.seed = number(option, value, uint64_t{0});
    } else if (option == "--learning-rate") {
      options.settings.learning_rate = number(option, value, 0.0);
    } else if (option == "--data") {
      options.data = value;
    } else if (option == "--require-accuracy") {
      options.require_accuracy = number(option, value, 0.0);
    } else {
      throw std::runtime_error("unknown option " + std::string(option) + "; --help shows those there are");
    }
  }
  return options;
}

}  // namespace digits
