// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <cstdlib>
#include <string>

namespace backplane::nccl {

int device_of(const sdk::Context& context, int count) {
  const std::string& option = context.options.text("device");
  int64_t device = context.device;
  if (option == "rank") {
    device = context.rank % count;
  } else if (!option.empty()) {
    char* end = nullptr;
    device = std::strtoll(option.c_str(), &end, 10);
    if (*end != '\0' || device < 0) {
      throw sdk::Failure(BP_INVALID, "nccl: option device must be a number or 'rank', not '" + option + "'");
    }
  }
  if (device < 0) {
    throw sdk::Failure(BP_INVALID, "nccl: rank " + std::to_string(context.rank) +
                                       " has no device; set GroupOptions::device or the option nccl?device=");
  }
  if (device >= count) {
    throw sdk::Failure(BP_INVALID, "nccl: rank " + std::to_string(context.rank) + " cannot use device " +
                                       std::to_string(device) + ": this machine has devices 0 to " +
                                       std::to_string(count - 1));
  }
  return static_cast<int>(device);
}

}  // namespace backplane::nccl
