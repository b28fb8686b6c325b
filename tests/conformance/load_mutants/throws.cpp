// SPDX-License-Identifier: Apache-2.0
//
// A plugin whose constructor throws.
#include <stdexcept>

#include "backplane/abi/abi.h"

namespace {
[[gnu::constructor]] void throws() { throw std::runtime_error("no plugin today"); }
}  // namespace

extern "C" BP_EXPORT const bp_plugin bp_plugin_v1 = {
    sizeof(bp_plugin), BP_MAGIC, BP_ABI_MINOR, 0, "the tests of Backplane", nullptr, 0, 0};
