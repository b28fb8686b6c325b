// SPDX-License-Identifier: Apache-2.0
//
// The frames between two ranks. All have the same size. Frames of one sender arrive in order.
#pragma once

#include <nccl.h>

#include <cstdint>

#include "backplane/sdk/messenger.hpp"

namespace backplane::nccl {

enum class FrameKind : uint32_t {
  kGoodbye = 1,  // no more frames follow
  kMessage,      // a frame of the Messenger, whose data is out-of-band
  kChannel       // the sender has created its channel; precedes the first data that the channel carries
};

struct Frame {
  FrameKind kind = FrameKind::kGoodbye;
  uint32_t reserved = 0;
  sdk::Messenger::Head head = {};  // kMessage
  ncclUniqueId channel = {};       // kChannel: the id of its communicator
};

}  // namespace backplane::nccl
