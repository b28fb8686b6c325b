// SPDX-License-Identifier: Apache-2.0
#include "rpc/wire.hpp"

#include <cstring>
#include <type_traits>

#include "error.hpp"

namespace backplane::core::rpc {
namespace {

constexpr uint32_t kMagic = 0x31635072;  // "rPc1"

class Writer {
 public:
  explicit Writer(std::string* out) : out_(*out) {}
  template <typename T>
  void put(T number) {
    static_assert(std::is_integral_v<T>);
    char bytes[sizeof(T)];
    std::memcpy(bytes, &number, sizeof(T));
    out_.append(bytes, sizeof(T));
  }
  void put(const Id& id) {
    put(id.maker);
    put(id.number);
  }
  void put(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    out_.append(text);
  }

 private:
  std::string& out_;
};

class Reader {
 public:
  explicit Reader(std::string_view* bytes) : bytes_(*bytes) {}
  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  Id id() {
    const auto maker = number<int32_t>();
    return {maker, number<uint64_t>()};
  }
  std::string text() { return std::string(take(number<uint32_t>())); }
  size_t left() const { return bytes_.size(); }

 private:
  std::string_view take(size_t size) {
    if (size > bytes_.size()) fail(BP_INVALID, "a message between workers is truncated");
    const std::string_view front = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return front;
  }
  std::string_view& bytes_;
};

constexpr size_t kForkSize = 4 + 2 * 12;

}  // namespace

bool carries_refs(Kind kind) { return kind == Kind::kCall || kind == Kind::kRemote || kind == Kind::kReply; }

std::string encode(const Header& header, uint64_t payload_bytes) {
  std::string bytes;
  bytes.reserve(64 + header.function.size() + header.refs.size() * kForkSize + payload_bytes);
  Writer out(&bytes);
  out.put(kMagic);
  out.put(static_cast<uint8_t>(header.kind));
  out.put(header.call);
  out.put(header.status);
  out.put(header.holder);
  out.put(header.value);
  out.put(header.fork);
  out.put(std::string_view(header.function));
  out.put(static_cast<uint32_t>(header.refs.size()));
  for (const Fork& ref : header.refs) {
    out.put(ref.owner);
    out.put(ref.value);
    out.put(ref.id);
  }
  return bytes;
}

Header decode(std::string_view* bytes) {
  Reader in(bytes);
  if (in.number<uint32_t>() != kMagic)
    fail(BP_INVALID, "a received message does not have the header of a message between workers");
  const auto kind = in.number<uint8_t>();
  if (kind < static_cast<uint8_t>(Kind::kCall) || kind > static_cast<uint8_t>(Kind::kRepliesLost)) {
    fail(BP_INVALID, "a message between workers has the unknown kind {}", kind);
  }
  Header header;
  header.kind = static_cast<Kind>(kind);
  header.call = in.number<uint64_t>();
  header.status = in.number<int32_t>();
  header.holder = in.number<int32_t>();
  header.value = in.id();
  header.fork = in.id();
  header.function = in.text();
  const auto refs = in.number<uint32_t>();
  if (refs > in.left() / kForkSize) fail(BP_INVALID, "a message between workers is truncated");
  for (uint32_t i = 0; i < refs; ++i) {
    Fork ref;
    ref.owner = in.number<int32_t>();
    ref.value = in.id();
    ref.id = in.id();
    header.refs.push_back(ref);
  }
  return header;
}

}  // namespace backplane::core::rpc
