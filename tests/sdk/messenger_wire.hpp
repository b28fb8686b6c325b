// SPDX-License-Identifier: Apache-2.0
//
// Messengers without a transport: the test carries their frames.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "backplane/sdk/messenger.hpp"

namespace backplane::sdk {

// Ranks and a wire between them, which moves frames on request.
class Wire {
 public:
  explicit Wire(int32_t world_size) {
    for (int32_t rank = 0; rank < world_size; ++rank) {
      ranks_.push_back(std::make_unique<Messenger>(rank, world_size, [](int32_t) {}));
    }
  }
  Messenger& operator[](int32_t rank) { return *ranks_[static_cast<size_t>(rank)]; }

  // Carries one frame, if there is one.
  bool carry(int32_t from, int32_t to) {
    Messenger::Bytes frame;
    if (!(*this)[from].next(to, frame)) return false;
    EXPECT_EQ(Messenger::frame_size(frame.data()), frame.size());
    (*this)[to].arrived(from, frame);
    return true;
  }
  // Carries all frames.
  void settle() {
    const auto count = static_cast<int32_t>(ranks_.size());
    for (bool busy = true; busy;) {
      busy = false;
      for (int32_t from = 0; from < count; ++from) {
        for (int32_t to = 0; to < count; ++to) busy |= from != to && carry(from, to);
      }
    }
  }

 private:
  std::vector<std::unique_ptr<Messenger>> ranks_;
};

using Data = std::vector<uint32_t>;

inline Data numbers(size_t count, uint32_t first = 0) {
  Data data(count);
  std::iota(data.begin(), data.end(), first);
  return data;
}
inline std::unique_ptr<Work> send(Messenger& from, int32_t to, uint64_t tag, const Data& data) {
  return from.send(to, tag, data.data(), data.size() * sizeof(uint32_t));
}
inline std::unique_ptr<Work> recv(Messenger& at, int32_t from, uint64_t tag, Data& data, bp_result* result = nullptr) {
  return at.recv(from, tag, data.data(), data.size() * sizeof(uint32_t), result);
}
inline int32_t end_of(const std::unique_ptr<Work>& work) {
  try {
    return !work || work->wait(0) ? BP_OK : BP_AGAIN;
  } catch (const Failure& failure) {
    return failure.status();
  }
}

constexpr size_t kLarge = Messenger::kPiece;  // elements of four bytes: four pieces

}  // namespace backplane::sdk
