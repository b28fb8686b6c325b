// SPDX-License-Identifier: Apache-2.0
#include "ranks.hpp"

namespace backplane::mpi_ranks {
namespace {

constexpr uint64_t kLengths[] = {0, 1, 12, 13, 14, 128, 129, 1023, 1024, 1025, 100'000};

std::vector<uint8_t> bytes_of(uint64_t length) { return values<uint8_t>(static_cast<int>(length % 7), length); }

}  // namespace

void message_lengths(ProcessGroup& group) {
  constexpr uint32_t kTag = 20;
  if (group.rank() == 1) {
    for (const uint64_t length : kLengths) {
      const std::vector<uint8_t> sent = bytes_of(length);
      for (int i = 0; i < 2; ++i) group.send(sent, 0, kTag);
    }
  }
  if (group.rank() == 0) {
    for (const uint64_t length : kLengths) {
      std::vector<uint8_t> expected = bytes_of(length);
      expected.resize(length + 7, 0xee);
      std::vector<uint8_t> longer(length + 7, 0xee);
      const Received received = group.recv(longer, 1, kTag).received();
      expect(received.bytes == length && received.tag == kTag && longer == expected,
             "a message of " + std::to_string(length) + " bytes, and the rest of the buffer as it was");
      std::vector<uint8_t> shorter(length == 0 ? 0 : length - 1);
      if (length == 0) {
        group.recv(shorter, 1, kTag);
        continue;
      }
      const std::string text = failure_of(Status::kInvalid, [&] { group.recv(shorter, 1, kTag); });
      expect(text.find(" has " + std::to_string(length) + " bytes") != std::string::npos, "the size in: " + text);
    }
  }
  group.barrier();
}

// Each message is probed three times: received, dropped, and received into a buffer that is too short.
void probed_messages(ProcessGroup& group) {
  constexpr uint32_t kTag = 21;
  if (group.rank() == 1) {
    for (const uint64_t length : kLengths) {
      const std::vector<uint8_t> sent = bytes_of(length);
      for (int i = 0; i < 3; ++i) group.send(sent, 0, kTag);
    }
  }
  if (group.rank() == 0) {
    for (const uint64_t length : kLengths) {
      Message message = group.probe(ProcessGroup::kAnySource, ProcessGroup::kAnyTag);
      const Received info = message.info();
      expect(info.source == 1 && info.tag == kTag && info.bytes == length, "the envelope of a message");
      std::vector<uint8_t> data(info.bytes);
      group.recv(data, std::move(message));
      expect(data == bytes_of(length), "the message that was probed");
      group.probe(1, kTag);  // dropped
      message = group.probe(1, kTag);
      std::vector<uint8_t> shorter(length / 2);
      if (length == 0) {
        group.recv(shorter, std::move(message));
        continue;
      }
      failure_of(Status::kInvalid, [&] { group.recv(shorter, std::move(message)); });
    }
    failure_of(Status::kTimeout, [&] { group.probe(1, kTag, std::chrono::milliseconds(20)); });
  }
  group.barrier();
  // Nothing but the wait for the send moves the message that is dropped.
  const std::vector<uint8_t> sent(2U << 20U);
  Work work = group.isend(sent, (group.rank() + 1) % group.world_size(), kTag);
  group.probe((group.rank() + group.world_size() - 1) % group.world_size(), kTag);
  work.wait();
  group.barrier();
}

}  // namespace backplane::mpi_ranks
