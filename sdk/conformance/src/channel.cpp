// SPDX-License-Identifier: Apache-2.0
#include "channel.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

namespace backplane::conformance {
namespace {

// A record: this header, then for each field its size (uint32_t) and its bytes.
struct Header {
  uint32_t magic;
  uint32_t size;  // of everything behind the header
  uint32_t kind;
  int32_t member;
};
constexpr uint32_t kMagic = 0x43504b42;
constexpr size_t kRoom = PIPE_BUF - sizeof(Header);

}  // namespace

void Channel::send(const Record& record) const {
  std::string body;
  for (const std::string& field : record.fields) {
    if (body.size() + sizeof(uint32_t) > kRoom) break;
    const auto size = static_cast<uint32_t>(std::min(field.size(), kRoom - body.size() - sizeof(uint32_t)));
    body.append(reinterpret_cast<const char*>(&size), sizeof size);
    body.append(field, 0, size);
  }
  const Header header = {kMagic, static_cast<uint32_t>(body.size()), record.kind, record.member};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += body;
  while (::write(descriptor_, bytes.data(), bytes.size()) < 0 && errno == EINTR) {
  }
}

bool RecordReader::next(Record& record) {
  for (;;) {
    if (buffer_.size() < sizeof(Header)) return false;
    Header header{};
    std::memcpy(&header, buffer_.data(), sizeof header);
    if (header.magic != kMagic || header.size > kRoom) {
      buffer_.erase(0, 1);
      continue;
    }
    if (buffer_.size() < sizeof header + header.size) return false;
    record = {static_cast<Record::Kind>(header.kind), header.member, {}};
    size_t at = sizeof header;
    const size_t end = at + header.size;
    while (at + sizeof(uint32_t) <= end) {
      uint32_t size = 0;
      std::memcpy(&size, buffer_.data() + at, sizeof size);
      at += sizeof size;
      if (size > end - at) break;
      record.fields.emplace_back(buffer_, at, size);
      at += size;
    }
    buffer_.erase(0, end);
    return true;
  }
}

}  // namespace backplane::conformance
