// SPDX-License-Identifier: Apache-2.0
//
// A layer that is built with the headers of a simulated ABI 1.1. It refuses an operation whose struct_size covers the
// field of 1.1 if the field has another value than compat_host has set.
#include <array>
#include <memory>

#include "backplane/sdk/sdk.hpp"

namespace {

namespace sdk = backplane::sdk;

class WitnessLayer final : public sdk::Layer {
 public:
  using Layer::Layer;

  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    if (BP_HAS(&op, since_1_1) && op.since_1_1 != 4711) {
      throw sdk::Failure(BP_INTERNAL, "witness: struct_size covers a field of the operation that nobody set");
    }
    return inner().submit(op);
  }
};

struct Witness {
  static constexpr const char* id = "witness";
  static constexpr const char* version = "1.0.0";
  static constexpr const char* summary = "layer: looks for fields that nobody set";
  static constexpr uint32_t kinds = BP_KIND_LAYER;
  static constexpr uint32_t flags = BP_BACKEND_BOUNDED;
  static constexpr std::array<bp_option, 0> options = {};
  static constexpr std::array<bp_capability, 0> capabilities = {};
  static std::unique_ptr<sdk::ProcessGroup> init(const sdk::Context& context) {
    return std::make_unique<WitnessLayer>(context);
  }
};

}  // namespace

BACKPLANE_PLUGIN("the tests", Witness)
